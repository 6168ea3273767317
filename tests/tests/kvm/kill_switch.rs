//! The kill switch: bytes that must not be where a jump of ours was stop all patching, and nothing else.

use serde_json::{Value, json};
use tests::{Client, Guest};

/// The guest writes over one of our jumps itself, as a kernel with a tracer of its own would.
#[test]
fn a_jump_that_the_guest_has_written_over_freezes_patching_until_thawed() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let text = client.digest();
    client.call("start", json!({"filter": ["spin_*"]}));
    client.wait_until("all record", |status| {
        Client::rings(status, "written") > 1000
    });
    running.type_text("x");
    running.wait_for("spin_leaf taken");
    // Nobody looks at a jump before it is to be changed.
    assert_eq!(client.status()["tracing"]["state"], "tracing");
    let message = client.refused("filter.set", json!({"filter": ["spin_root"]}));
    for word in ["frozen", "spin_leaf", "0f 1f 44 00 00", "the guest goes on"] {
        assert!(message.contains(word), "{word}: {message}");
    }
    let status = client.status();
    let frozen = &status["tracing"]["frozen"];
    assert_eq!(status["tracing"]["state"], "frozen");
    assert_eq!(frozen["function"], "spin_leaf", "{frozen}");
    assert_eq!(frozen["found"], "0f 1f 44 00 00", "{frozen}");
    let expected = frozen["expected"].as_str().unwrap();
    assert!(expected.starts_with("e9 "), "{frozen}");
    let list = client.call("functions", json!({"glob": "spin_leaf"}));
    assert_eq!(frozen["address"], list["functions"][0]["address"]);
    let shown = running.ctl(&["status"]).good().stdout;
    assert!(
        shown.contains("frozen") && shown.contains("`ctl thaw`"),
        "{shown}"
    );

    // Nothing is patched, not even what is sound; what is in place records on, and is read.
    let stopped = client.refused("stop", Value::Null);
    assert!(stopped.contains("frozen"), "{stopped}");
    let before = Client::rings(&client.status(), "written");
    client.wait_until("it is recorded on", |status| {
        Client::rings(status, "written") > before
    });
    let dump = running.path("dump");
    client.call("dump", json!({"dir": dump}));

    // What was found wrong is put right; that alone does not thaw.
    running.type_text("x");
    running.wait_for("spin_leaf given back");
    let message = client.refused("filter.set", json!({"filter": ["spin_root"]}));
    assert!(message.contains("frozen"), "{message}");
    assert_eq!(running.ctl(&["thaw"]).good().stdout, "patching goes on\n");
    assert!(client.status()["tracing"]["frozen"].is_null());
    client.call("filter.set", json!({"filter": ["spin_root"]}));
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), text);
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    assert!(trace.named("dump").report("function").contains("spin_root"));
}
