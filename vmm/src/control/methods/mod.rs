//! Every method, one file for each group of them, and the list of all: the server finds a method in it, and whoever wants
//! to know of all of them walks over it.

pub mod dynfunc;
pub mod events;
pub mod filters;
pub mod guest;
pub mod listening;
pub mod probes;
pub mod service;
pub mod sessions;
pub mod tasks;
pub mod tracing;

use serde_json::Value;

use super::method::{Method, Served, Visitor};
use super::protocol::{self, Call, METHOD_NOT_FOUND, Response, RpcError};

/// Comes by all methods.
pub fn visit_all(visitor: &mut impl Visitor) {
    guest::visit(visitor);
    sessions::visit(visitor);
    tracing::visit(visitor);
    filters::visit(visitor);
    tasks::visit(visitor);
    events::visit(visitor);
    probes::visit(visitor);
    dynfunc::visit(visitor);
    listening::visit(visitor);
    service::visit(visitor);
}

/// Answers one request line; `None` for a notification.
pub fn answer(line: &[u8], on: &mut impl Served) -> Option<String> {
    let parsed = protocol::parse(line);
    let outcome = parsed.call.and_then(|call| {
        let outcome = carry_out(&call, on);
        if let Err(error) = &outcome {
            on.errors().note(&call.method, error);
        }
        outcome
    });
    parsed.id.map(|id| Response::new(id, outcome).line())
}

fn carry_out(call: &Call, on: &mut impl Served) -> Result<Value, RpcError> {
    let mut asked = Asked {
        call,
        on,
        outcome: None,
    };
    visit_all(&mut asked);
    asked.outcome.unwrap_or_else(|| {
        let name = &call.method;
        let message = format!("there is no method '{name}'; vmm/CONTROL.md lists them");
        Err(RpcError::new(METHOD_NOT_FOUND, message))
    })
}

/// Looks for the method that is asked for, and carries it out.
struct Asked<'a, S> {
    call: &'a Call,
    on: &'a mut S,
    outcome: Option<Result<Value, RpcError>>,
}

impl<S: Served> Asked<'_, S> {
    fn perform<M: Method>(&mut self) -> Result<Value, RpcError> {
        let method: M = self.call.read()?;
        self.on.look();
        let result = method.perform(self.on)?;
        serde_json::to_value(result).map_err(RpcError::failed)
    }
}

impl<S: Served> Visitor for Asked<'_, S> {
    fn visit<M: Method>(&mut self) {
        if M::NAME == self.call.method {
            self.outcome = Some(self.perform::<M>());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use status::DynamicChange;
    use tracer::LockPrefixes;
    use tracer::tracing::Tracing;
    use tracer::tracing::options::Tracer;

    use super::dynfunc::*;
    use super::events::*;
    use super::filters::*;
    use super::guest::*;
    use super::listening::*;
    use super::probes::*;
    use super::service::*;
    use super::sessions::*;
    use super::tasks::*;
    use super::tracing::*;
    use super::{METHOD_NOT_FOUND, Response, RpcError, answer, visit_all};
    use crate::control::errors::ErrorLog;
    use crate::control::method::{Method, Nothing, Served, Visitor};
    use crate::control::outputs::Outputs;
    use crate::control::protocol::{INVALID_PARAMS, parse};
    use crate::control::status::Status;
    use crate::control::subscription::Subscriptions;
    use crate::machine::Machine;
    use crate::options::session::SessionOptions;
    use crate::options::trigger::Trigger;

    /// Nothing is ever asked of it but to end.
    #[derive(Default)]
    struct Nobody {
        looks: u32,
        has_ended: bool,
        errors: ErrorLog,
    }

    impl Served for Nobody {
        type Guest = Machine;

        fn look(&mut self) {
            self.looks += 1;
        }

        fn tracing(&mut self) -> (&mut Tracing, &Machine) {
            panic!("tracing was asked for")
        }

        fn status(&mut self) -> Status {
            panic!("the status was asked for")
        }

        fn pause(&mut self) -> Result<bool, RpcError> {
            Err(RpcError::failed("it does not pause"))
        }

        fn resume(&mut self) -> bool {
            false
        }

        fn shut_down(&mut self) {
            self.has_ended = true;
        }

        fn outputs(&self) -> &Outputs {
            panic!("something is to be written")
        }

        fn subscriptions(&mut self) -> &mut Subscriptions {
            panic!("somebody listens")
        }

        fn errors(&mut self) -> &mut ErrorLog {
            &mut self.errors
        }

        fn arm(&mut self, _: &str, _: &[Trigger]) -> Result<(), RpcError> {
            panic!("triggers wait")
        }

        fn disarm(&mut self, _: &str) {
            panic!("triggers waited")
        }
    }

    fn reply(line: &str, on: &mut Nobody) -> Response {
        let line = answer(line.as_bytes(), on).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_request_is_looked_at_carried_out_and_answered() {
        let on = &mut Nobody::default();
        let resumed = reply(r#"{"jsonrpc":"2.0","method":"resume","id":1}"#, on);
        assert_eq!(resumed.result, Some(serde_json::json!({"changed": false})));
        let failed = reply(r#"{"jsonrpc":"2.0","method":"pause","id":"a"}"#, on);
        assert_eq!(failed.error.unwrap().message, "it does not pause");
        let told = answer(br#"{"jsonrpc":"2.0","method":"shutdown","params":{}}"#, on);
        assert!(told.is_none() && on.has_ended);
        assert_eq!(on.looks, 3);
    }

    #[test]
    fn what_is_no_method_or_no_parameter_is_refused_before_anybody_looks() {
        let on = &mut Nobody::default();
        let mut code = |line: &str| reply(line, on).error.unwrap().code;
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"fly","id":1}"#),
            METHOD_NOT_FOUND
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"probe.fly","id":1}"#),
            METHOD_NOT_FOUND
        );
        let unknown = r#"{"jsonrpc":"2.0","method":"start","params":{"fliter":[]},"id":1}"#;
        assert_eq!(code(unknown), INVALID_PARAMS);
        let surplus = r#"{"jsonrpc":"2.0","method":"status","params":{"a":1},"id":1}"#;
        assert_eq!(code(surplus), INVALID_PARAMS);
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"dump","id":1}"#),
            INVALID_PARAMS
        );
        assert_eq!(on.looks, 0);
    }

    #[test]
    fn what_was_refused_can_be_asked_for_until_it_is_cleared() {
        let on = &mut Nobody::default();
        fn asked(params: &str, on: &mut Nobody) -> Vec<serde_json::Value> {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"errors","params":{params},"id":1}}"#);
            let replied = reply(&line, on).result.unwrap();
            replied["errors"].as_array().unwrap().clone()
        }
        assert_eq!(asked("{}", on).len(), 0);
        let _ = reply(r#"{"jsonrpc":"2.0","method":"pause","id":1}"#, on);
        // Who asks without waiting for a reply is told nothing then.
        assert!(answer(br#"{"jsonrpc":"2.0","method":"fly"}"#, on).is_none());
        let told = asked(r#"{"clear":true}"#, on);
        assert_eq!(told[0]["message"], "it does not pause");
        assert_eq!((&told[1]["method"], told.len()), (&"fly".into(), 2));
        assert_eq!(asked("{}", on).len(), 0);
    }

    #[derive(Default)]
    struct Names(Vec<&'static str>);

    impl Visitor for Names {
        fn visit<M: Method>(&mut self) {
            self.0.push(M::NAME);
        }
    }

    /// Methods that were written as a line and read back.
    #[derive(Default)]
    struct Read(BTreeSet<&'static str>);

    impl Read {
        fn and<M: Method + PartialEq + std::fmt::Debug>(mut self, method: M) -> Self {
            let parsed = parse(method.call().unwrap().line(7).as_bytes());
            assert_eq!(parsed.id, Some(7.into()));
            let call = parsed.call.unwrap();
            assert_eq!(call.method, M::NAME);
            assert_eq!(call.read::<M>().unwrap(), method);
            self.0.insert(M::NAME);
            self
        }
    }

    #[test]
    fn every_method_survives_the_line() {
        let session = || SessionName("other".to_owned());
        let of = || OfSession { session: session() };
        let change = || FilterChange {
            session: session(),
            filter: vec!["a*".to_owned()],
            notrace: vec!["b".to_owned()],
        };
        let create = NewSession {
            name: "other".to_owned(),
            tracer: Tracer::Graph,
            options: SessionOptions {
                output: Some("out".into()),
                trigger: vec!["f: dump a last 5ms".parse().unwrap()],
                ..SessionOptions::default()
            },
        };
        let start = Wanted {
            filter: vec!["calls_*".to_owned()],
            tracer: Some(Tracer::Graph),
            ..Wanted::default()
        };
        let enable = EventChange {
            session: session(),
            events: vec!["a".to_owned()],
            callbacks: Vec::new(),
        };
        let disable = EventChange {
            events: vec!["a".to_owned(), "b".to_owned()],
            callbacks: vec!["c".to_owned()],
            ..EventChange::default()
        };
        let add = NewProbes {
            probes: vec!["a %rdi".to_owned()],
            tactic: Some(2),
            ..NewProbes::default()
        };
        let one = SomeProbes {
            ids: vec![1],
            all_of: None,
        };
        let all = SomeProbes {
            ids: Vec::new(),
            all_of: Some(session()),
        };
        let tasks = || Tasks {
            session: session(),
            tasks: vec!["process:1".to_owned()],
        };
        let retarget = DynamicChange {
            name: "a".to_owned(),
            target: "b".to_owned(),
        };
        let dump = DumpTo {
            session: SessionName::default(),
            dir: "out".into(),
            live: true,
            last: Some(5),
        };
        let read = Read::default()
            .and(ShowStatus(Nothing {}))
            .and(ListFunctions(FunctionsQuery {
                glob: Some("x*".to_owned()),
            }))
            .and(ListFunctions(FunctionsQuery::default()))
            .and(Start(start))
            .and(Stop(OfSession::default()))
            .and(Stop(of()))
            .and(CreateSession(create))
            .and(DeleteSession(OldSession { session: session() }))
            .and(ListSessions(Nothing {}))
            .and(Thaw(Nothing {}))
            .and(ShowProfile(of()))
            .and(SwitchLocks(LockState {
                state: LockPrefixes::Off,
            }))
            .and(AddFilter(change()))
            .and(RemoveFilter(change()))
            .and(SetFilter(change()))
            .and(ClearFilter(of()))
            .and(TracingOn(OfSession::default()))
            .and(TracingOff(of()))
            .and(ListEvents(Nothing {}))
            .and(EnableEvents(enable))
            .and(DisableEvents(disable))
            .and(AddProbes(add))
            .and(ListProbes(Nothing {}))
            .and(RemoveProbes(one))
            .and(EnableProbes(all))
            .and(DisableProbes(SomeProbes::default()))
            .and(ListDynamic(Nothing {}))
            .and(SetDynamic(Targets {
                changes: vec![retarget],
            }))
            .and(ResetDynamic(SomeDynamic {
                names: vec!["a".to_owned()],
            }))
            .and(Pause(Nothing {}))
            .and(Resume(Nothing {}))
            .and(Dump(dump))
            .and(TakeDigest(Nothing {}))
            .and(Subscribe(of()))
            .and(SetVcpus(VcpuNumbers {
                session: session(),
                vcpus: vec![0, 2],
            }))
            .and(ClearVcpus(of()))
            .and(SetTasks(TaskChoice {
                session: session(),
                tasks: vec!["1".to_owned(), "sh".to_owned()],
                not: true,
                follow_forks: true,
            }))
            .and(AddTasks(tasks()))
            .and(RemoveTasks(tasks()))
            .and(ClearTasks(of()))
            .and(ShowTasks(of()))
            .and(ShowErrors(ErrorsQuery { clear: true }))
            .and(ShowVersion(Nothing {}))
            .and(ShutDown(Nothing {}));
        let mut all = Names::default();
        visit_all(&mut all);
        let names: BTreeSet<&str> = all.0.iter().copied().collect();
        assert_eq!(read.0, names);
        assert_eq!(all.0.len(), names.len(), "a name twice: {:?}", all.0);
    }
}
