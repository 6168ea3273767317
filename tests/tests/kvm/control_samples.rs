//! What `vmm/CONTROL.md` shows is what a guest replies: each request of the document is sent, and its reply
//! has the fields that the document shows, and no others.

use std::collections::BTreeSet;

use serde_json::{Deserializer, Value, json};
use tests::{Client, Guest};

const DOCUMENT: &str = include_str!("../../../vmm/CONTROL.md");

/// The requests of the document, each with the reply below it.
fn samples() -> Vec<(Value, Value)> {
    let blocks = DOCUMENT.split("```json\n").skip(1);
    let texts = blocks.filter_map(|block| block.split("```").next());
    let parsed = texts.flat_map(|text| Deserializer::from_str(text).into_iter::<Value>());
    let mut samples: Vec<(Value, Value)> = Vec::new();
    for value in parsed {
        let value = value.expect("the document's samples are JSON");
        if value.get("method").is_some() {
            samples.push((value, Value::Null));
        } else if let Some((request, reply)) = samples.last_mut() {
            assert_eq!(
                value["id"], request["id"],
                "{value} is no reply to {request}"
            );
            assert_eq!(*reply, Value::Null, "two replies to {request}");
            *reply = value;
        }
    }
    samples
}

/// Brings the guest to where the document has it when `request` is sent.
fn prepare(client: &mut Client, request: &Value) {
    let mut ask = |method: &str, params: Value| drop(client.ask(method, params));
    let params = &request["params"];
    match request["method"].as_str().unwrap() {
        "start" => ask("stop", Value::Null),
        "session.delete" => ask(
            "start",
            json!({"session": params["session"], "filter": ["calls_*"]}),
        ),
        "profile" => {
            ask("session.create", json!({"name": "p", "tracer": "profile"}));
            ask("start", json!({"session": "p", "filter": ["func*"]}));
        }
        "status" | "stop" | "tracing-on" | "tracing-off" | "events.enable" | "events.disable" => {
            ask("start", json!({"filter": ["func*"]}));
        }
        "errors" => {
            ask("start", json!({"filter": ["func*"]}));
            ask("errors", json!({"clear": true}));
            ask("probe.add", json!({"probes": ["func0 %rdj"]}));
        }
        method if method.starts_with("filter") || method.starts_with("probe") => {
            ask("start", json!({"filter": ["func*"]}))
        }
        _ => {}
    }
}

/// Fields and types that one has and the other has not. Arrays are alike where one of them is empty.
fn differences(shown: &Value, real: &Value, path: &str, found: &mut Vec<String>) {
    match (shown, real) {
        (Value::Object(shown), Value::Object(real)) => {
            let names: BTreeSet<&String> = shown.keys().chain(real.keys()).collect();
            for name in names {
                let path = format!("{path}.{name}");
                match (shown.get(name), real.get(name)) {
                    (Some(shown), Some(real)) => differences(shown, real, &path, found),
                    (Some(_), None) => found.push(format!("{path}: only in the document")),
                    _ => found.push(format!("{path}: not in the document")),
                }
            }
        }
        (Value::Array(shown), Value::Array(real)) => {
            if let (Some(shown), Some(real)) = (shown.first(), real.first()) {
                differences(shown, real, &format!("{path}[]"), found);
            }
        }
        _ if std::mem::discriminant(shown) == std::mem::discriminant(real) => {}
        _ => found.push(format!("{path}: {shown} in the document, {real} really")),
    }
}

#[test]
fn the_samples_of_the_document_are_what_a_guest_replies() {
    let mut running = Guest::new("workload=dynfunc").vcpus(2).start();
    running.wait_for("dynfunc func3 leads to");
    let mut client = running.client();
    let mut found = Vec::new();
    let mut count = 0;
    for (mut request, reply) in samples() {
        let method = request["method"].as_str().unwrap().to_owned();
        assert_ne!(reply, Value::Null, "{request} has no reply in the document");
        if request.to_string().contains("mod:") {
            continue; // Of a Linux guest.
        }
        prepare(&mut client, &request);
        if method == "dump" {
            request["params"]["dir"] = json!(running.path("dump"));
        }
        let real = match client.ask(&method, request["params"].take()) {
            Some(Ok(result)) => json!({"result": result}),
            Some(Err(error)) => json!({"error": error}),
            None => panic!("{method}: no reply"),
        };
        let shown = match (reply.get("result"), reply.get("error")) {
            (Some(result), _) => json!({"result": result}),
            (_, error) => json!({"error": error}),
        };
        differences(&shown, &real, &format!("{method}: "), &mut found);
        count += 1;
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count > 25, "{count} samples");
    let _ = running.end().0.good();
}
