//! The control protocol's types: newline-delimited JSON-RPC 2.0. `vmm/CONTROL.md` describes it
//! with examples; this file is what it describes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use terms::printable;
use tracer::patch::locks::LockPrefixes;

use super::dynfunc::{ResetDynamic, SetDynamic};
use super::events::EventChange;
use super::probes::ProbeCall;
pub use super::sessions::{CreateSession, FilterChange, OfSession, SessionName, Start};

/// The protocol's name for its version, in every message.
pub const VERSION: &str = "2.0";

/// The text is no JSON.
pub const PARSE_ERROR: i32 = -32700;
/// JSON, but no JSON-RPC 2.0 request object.
pub const INVALID_REQUEST: i32 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The method does not take these parameters.
pub const INVALID_PARAMS: i32 = -32602;
/// The request is right, but what it asks for failed; the message says why.
pub const FAILED: i32 = -32000;
/// A line without end.
pub const LINE_TOO_LONG: i32 = -32001;
/// Too many clients.
pub const TOO_MANY_CLIENTS: i32 = -32002;

/// An error of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// One of the constants of this module.
    pub code: i32,
    /// What went wrong and what to do, in one line.
    pub message: String,
}

impl RpcError {
    /// An error with this code and message.
    pub fn new(code: i32, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }

    /// What was asked for failed.
    pub fn failed(message: impl ToString) -> Self {
        Self::new(FAILED, message)
    }
}

/// A request as it stands on the line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    jsonrpc: String,
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    id: Option<Value>,
    method: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<Value>,
}

/// A `null` that is there is something else than a field that is not.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A reply as it stands on the line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Response {
    jsonrpc: String,
    /// The request's id, `null` when it could not be read.
    #[serde(default)]
    pub id: Value,
    /// What the method returned.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub result: Option<Value>,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

impl Response {
    /// The reply to request `id`.
    #[must_use]
    pub fn new(id: Value, outcome: Result<Value, RpcError>) -> Self {
        let (result, error) = match outcome {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            jsonrpc: VERSION.to_owned(),
            id,
            result,
            error,
        }
    }

    /// The reply as one line, its newline included.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = printable::json(self).unwrap_or_else(|_| {
            format!(
                r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{FAILED},"message":"reply"}}}}"#
            )
        });
        line.push('\n');
        line
    }
}

/// `smp-locks`: which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchLocks {
    /// On or off.
    pub state: LockPrefixes,
}

/// `functions`: which ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FunctionsQuery {
    /// Only functions whose name this matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
}

/// `dump`: where to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dump {
    /// Which session.
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// The directory to write, on the VMM's side.
    pub dir: String,
    /// Whether recording goes on while the rings are copied.
    #[serde(default, skip_serializing_if = "is_false")]
    pub live: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// A request that has been understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// State of the guest, its vCPUs, tracing and pauses.
    Status,
    /// What can be traced and what is.
    Functions(FunctionsQuery),
    /// Attach and trace.
    Start(Start),
    /// Detach: original bytes back.
    Stop(OfSession),
    /// Make a session.
    CreateSession(CreateSession),
    /// Stop and forget a session.
    DeleteSession(OfSession),
    /// Every session.
    ListSessions,
    /// Trace these functions too.
    FilterAdd(FilterChange),
    /// Take these globs away.
    FilterRemove(FilterChange),
    /// Exactly these globs.
    FilterSet(FilterChange),
    /// No globs: everything is traced.
    FilterClear(OfSession),
    /// Let the stubs record.
    TracingOn(OfSession),
    /// Keep the stubs from recording, without patching.
    TracingOff(OfSession),
    /// Patch again after the kill switch.
    Thaw,
    /// Make the guest's lock prefixes effective, or not.
    SwitchLocks(SwitchLocks),
    /// What a profile session has counted.
    Profile(OfSession),
    /// Every event of the guest.
    ListEvents,
    /// Have events recorded, or a function called at them.
    EnableEvents(EventChange),
    /// Take that back.
    DisableEvents(EventChange),
    /// What concerns probes.
    Probe(ProbeCall),
    /// Every dynamic function.
    ListDynamic,
    /// Lead dynamic functions somewhere else.
    SetDynamic(SetDynamic),
    /// Lead dynamic functions where they did at first.
    ResetDynamic(ResetDynamic),
    /// Pause the guest.
    Pause,
    /// Let it run again.
    Resume,
    /// Write what the rings hold now.
    Dump(Dump),
    /// Digest of the guest's text.
    Digest,
    /// End the run.
    Shutdown,
}

impl Call {
    /// The method's name and parameters, as on the line.
    #[must_use]
    pub fn to_method(&self) -> (&'static str, Option<Value>) {
        fn some(params: &impl Serialize) -> Option<Value> {
            serde_json::to_value(params).ok()
        }
        match self {
            Self::Status => ("status", None),
            Self::Functions(query) => ("functions", some(query)),
            Self::Start(start) => ("start", some(start)),
            Self::Stop(of) => ("stop", some(of)),
            Self::CreateSession(create) => ("session.create", some(create)),
            Self::DeleteSession(of) => ("session.delete", some(of)),
            Self::ListSessions => ("session.list", None),
            Self::Thaw => ("thaw", None),
            Self::SwitchLocks(switch) => ("smp-locks", some(switch)),
            Self::Profile(of) => ("profile", some(of)),
            Self::FilterAdd(change) => ("filter.add", some(change)),
            Self::FilterRemove(change) => ("filter.remove", some(change)),
            Self::FilterSet(change) => ("filter.set", some(change)),
            Self::FilterClear(of) => ("filter.clear", some(of)),
            Self::TracingOn(of) => ("tracing-on", some(of)),
            Self::TracingOff(of) => ("tracing-off", some(of)),
            Self::ListEvents => ("events.list", None),
            Self::EnableEvents(change) => ("events.enable", some(change)),
            Self::DisableEvents(change) => ("events.disable", some(change)),
            Self::Probe(call) => call.to_method(),
            Self::ListDynamic => ("dynfunc.list", None),
            Self::SetDynamic(set) => ("dynfunc.set", some(set)),
            Self::ResetDynamic(reset) => ("dynfunc.reset", some(reset)),
            Self::Pause => ("pause", None),
            Self::Resume => ("resume", None),
            Self::Dump(dump) => ("dump", some(dump)),
            Self::Digest => ("digest", None),
            Self::Shutdown => ("shutdown", None),
        }
    }

    fn from_method(method: &str, params: Option<Value>) -> Result<Self, RpcError> {
        let params = params.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        let call = match method {
            "functions" => return read(method, params).map(Self::Functions),
            "start" => return read(method, params).map(Self::Start),
            "filter.add" => return read(method, params).map(Self::FilterAdd),
            "filter.remove" => return read(method, params).map(Self::FilterRemove),
            "filter.set" => return read(method, params).map(Self::FilterSet),
            "dump" => return read(method, params).map(Self::Dump),
            "stop" => return read(method, params).map(Self::Stop),
            "session.create" => return read(method, params).map(Self::CreateSession),
            "session.delete" => return read(method, params).map(Self::DeleteSession),
            "smp-locks" => return read(method, params).map(Self::SwitchLocks),
            "profile" => return read(method, params).map(Self::Profile),
            "filter.clear" => return read(method, params).map(Self::FilterClear),
            "tracing-on" => return read(method, params).map(Self::TracingOn),
            "tracing-off" => return read(method, params).map(Self::TracingOff),
            "events.list" => Self::ListEvents,
            "events.enable" => return read(method, params).map(Self::EnableEvents),
            "events.disable" => return read(method, params).map(Self::DisableEvents),
            name if ProbeCall::is_one(name) => {
                return ProbeCall::from_method(name, params).map(Self::Probe);
            }
            "dynfunc.set" => return read(method, params).map(Self::SetDynamic),
            "dynfunc.reset" => return read(method, params).map(Self::ResetDynamic),
            "dynfunc.list" => Self::ListDynamic,
            "status" => Self::Status,
            "session.list" => Self::ListSessions,
            "thaw" => Self::Thaw,
            "pause" => Self::Pause,
            "resume" => Self::Resume,
            "digest" => Self::Digest,
            "shutdown" => Self::Shutdown,
            other => {
                let message = format!("there is no method '{other}'; vmm/CONTROL.md lists them");
                return Err(RpcError::new(METHOD_NOT_FOUND, message));
            }
        };
        read::<Nothing>(method, params).map(|Nothing {}| call)
    }

    /// The request as one line, its newline included.
    #[must_use]
    pub fn line(&self, id: u64) -> String {
        let (method, params) = self.to_method();
        let envelope = Envelope {
            jsonrpc: VERSION.to_owned(),
            id: Some(id.into()),
            method: method.to_owned(),
            params,
        };
        let mut line = printable::json(&envelope).unwrap_or_default();
        line.push('\n');
        line
    }
}

pub(super) fn read<T: DeserializeOwned>(method: &str, params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params)
        .map_err(|error| RpcError::new(INVALID_PARAMS, format!("params of '{method}': {error}")))
}

/// A line that has been taken apart.
#[derive(Debug)]
pub struct Parsed {
    /// The id to reply to; `None` for a notification, which gets no reply.
    pub id: Option<Value>,
    /// What was asked for, or the error to reply with.
    pub call: Result<Call, RpcError>,
}

/// Takes one line apart.
#[must_use]
pub fn parse(line: &[u8]) -> Parsed {
    let wrong = |id, code, message: String| Parsed {
        id: Some(id),
        call: Err(RpcError::new(code, message)),
    };
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return wrong(Value::Null, PARSE_ERROR, format!("not JSON: {error}")),
    };
    let id = value
        .get("id")
        .filter(|id| is_id(id))
        .cloned()
        .unwrap_or(Value::Null);
    if !value.is_object() {
        let message = "one request object per line; batches are not supported".to_owned();
        return wrong(id, INVALID_REQUEST, message);
    }
    let envelope: Envelope = match serde_json::from_value(value) {
        Ok(envelope) => envelope,
        Err(error) => {
            return wrong(
                id,
                INVALID_REQUEST,
                format!("not a JSON-RPC 2.0 request: {error}"),
            );
        }
    };
    if envelope.jsonrpc != VERSION {
        return wrong(
            id,
            INVALID_REQUEST,
            "\"jsonrpc\" must be \"2.0\"".to_owned(),
        );
    }
    if envelope.id.as_ref().is_some_and(|id| !is_id(id)) {
        let message = "\"id\" must be a string, a number or null".to_owned();
        return wrong(Value::Null, INVALID_REQUEST, message);
    }
    Parsed {
        id: envelope.id,
        call: Call::from_method(&envelope.method, envelope.params),
    }
}

fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_number() || id.is_null()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::probes::{AddProbes, SomeProbes};
    use crate::options::session::SessionOptions;
    use tracer::tracing::options::Tracer;
    use tracer::tracing::status::DynamicChange;

    fn code(line: &str) -> i32 {
        parse(line.as_bytes()).call.unwrap_err().code
    }

    #[test]
    fn every_call_survives_the_line() {
        let other = OfSession {
            session: SessionName("other".to_owned()),
        };
        let globs = FilterChange {
            session: SessionName("other".to_owned()),
            filter: vec!["a*".to_owned()],
            notrace: vec!["b".to_owned()],
        };
        let calls = [
            Call::Status,
            Call::Functions(FunctionsQuery {
                glob: Some("x*".to_owned()),
            }),
            Call::Functions(FunctionsQuery::default()),
            Call::Start(Start {
                filter: vec!["calls_*".to_owned()],
                tracer: Some(Tracer::Graph),
                ..Start::default()
            }),
            Call::Stop(OfSession::default()),
            Call::Stop(other.clone()),
            Call::CreateSession(CreateSession {
                name: "other".to_owned(),
                tracer: Tracer::Graph,
                options: SessionOptions {
                    output: Some("out".into()),
                    ..SessionOptions::default()
                },
            }),
            Call::DeleteSession(other.clone()),
            Call::ListSessions,
            Call::Thaw,
            Call::Profile(other.clone()),
            Call::SwitchLocks(SwitchLocks {
                state: LockPrefixes::Off,
            }),
            Call::FilterAdd(globs.clone()),
            Call::FilterRemove(globs.clone()),
            Call::FilterSet(globs),
            Call::FilterClear(other.clone()),
            Call::TracingOn(OfSession::default()),
            Call::TracingOff(other),
            Call::ListEvents,
            Call::EnableEvents(EventChange {
                session: SessionName("other".to_owned()),
                events: vec!["a".to_owned()],
                callbacks: Vec::new(),
            }),
            Call::DisableEvents(EventChange {
                events: vec!["a".to_owned(), "b".to_owned()],
                callbacks: vec!["c".to_owned()],
                ..EventChange::default()
            }),
            Call::Probe(ProbeCall::Add(AddProbes {
                probes: vec!["a %rdi".to_owned()],
                tactic: Some(2),
                ..AddProbes::default()
            })),
            Call::Probe(ProbeCall::List),
            Call::Probe(ProbeCall::Remove(SomeProbes {
                ids: vec![1],
                all_of: None,
            })),
            Call::Probe(ProbeCall::Enable(SomeProbes {
                ids: Vec::new(),
                all_of: Some(SessionName("other".to_owned())),
            })),
            Call::Probe(ProbeCall::Disable(SomeProbes::default())),
            Call::ListDynamic,
            Call::SetDynamic(SetDynamic {
                changes: vec![DynamicChange {
                    name: "a".to_owned(),
                    target: "b".to_owned(),
                }],
            }),
            Call::ResetDynamic(ResetDynamic {
                names: vec!["a".to_owned()],
            }),
            Call::Pause,
            Call::Resume,
            Call::Dump(Dump {
                session: SessionName::default(),
                dir: "out".to_owned(),
                live: true,
            }),
            Call::Digest,
            Call::Shutdown,
        ];
        for call in calls {
            let parsed = parse(call.line(7).as_bytes());
            assert_eq!(parsed.id, Some(7.into()));
            let method = format!("\"method\":\"{}\"", call.to_method().0);
            assert_eq!(parsed.call.unwrap(), call);
            let document = include_str!("../../CONTROL.md");
            assert!(document.contains(&method), "CONTROL.md has no {method}");
        }
    }

    #[test]
    fn each_way_to_be_wrong_has_its_code() {
        assert_eq!(code("{"), PARSE_ERROR);
        assert_eq!(code("\u{0}"), PARSE_ERROR);
        assert_eq!(code("[]"), INVALID_REQUEST);
        assert_eq!(code("7"), INVALID_REQUEST);
        assert_eq!(code(r#"{"method":"status","id":1}"#), INVALID_REQUEST);
        assert_eq!(
            code(r#"{"jsonrpc":"1.0","method":"status","id":1}"#),
            INVALID_REQUEST
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"status","id":[]}"#),
            INVALID_REQUEST
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"status","id":1,"x":2}"#),
            INVALID_REQUEST
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"fly","id":1}"#),
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
    }

    #[test]
    fn an_error_carries_the_id_when_it_could_be_read() {
        assert_eq!(parse(br#"{"id":"a","method":1}"#).id, Some("a".into()));
        assert_eq!(parse(b"{").id, Some(Value::Null));
    }

    #[test]
    fn a_request_without_id_is_a_notification() {
        assert_eq!(parse(br#"{"jsonrpc":"2.0","method":"pause"}"#).id, None);
        let null = parse(br#"{"jsonrpc":"2.0","method":"pause","id":null}"#);
        assert_eq!(null.id, Some(Value::Null));
    }

    #[test]
    fn replies_have_a_result_or_an_error_and_one_newline() {
        let good = Response::new(1.into(), Ok(Value::Null)).line();
        assert_eq!(good, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}\n");
        let bad = Response::new(Value::Null, Err(RpcError::failed("no"))).line();
        let expected = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}"#;
        assert_eq!(bad.trim_end(), expected);
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }
    }
}
