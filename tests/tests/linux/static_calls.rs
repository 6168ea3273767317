//! The kernel's static calls: listed as they are now, and left alone.

use serde_json::{Value, json};
use tests::Guest;

#[test]
fn static_calls_are_listed_with_where_they_lead_and_not_changed() {
    let mut running = Guest::linux("", None).start();
    running.wait_for("a shell on ttyS0");
    let mut client = running.client();
    let list = client.call("dynfunc.list", Value::Null);
    let calls = list["functions"].as_array().unwrap();
    assert!(calls.len() > 10, "{list}");
    assert!(
        calls.iter().all(|call| call["kind"] == "static_call"),
        "{list}"
    );
    let lead_somewhere = calls.iter().filter(|call| {
        let target = call["target"].as_str().unwrap();
        assert!(!target.starts_with("unknown"), "{call}");
        !target.starts_with("nothing")
    });
    assert!(lead_somewhere.count() > 5, "{list}");
    let name = &calls[0]["name"];
    let change = json!({"changes": [{"name": name, "target": "schedule"}]});
    let said = client.refused("dynfunc.set", change);
    assert!(said.contains("is a static call of the kernel"), "{said}");
    running.type_text("exit 0\n");
    let _ = running.end().0.good();
}
