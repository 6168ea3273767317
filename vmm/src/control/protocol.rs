//! What all requests and replies have in common: newline-delimited JSON-RPC 2.0. `vmm/CONTROL.md` describes it with
//! examples; which methods there are is said in `methods/`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use terms::printable;

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
    /// What in the request is wrong, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Mark>,
}

/// A place in a text of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The text.
    pub text: String,
    /// The character that is wrong, from 1.
    pub column: u64,
}

impl RpcError {
    /// An error with this code and message.
    pub fn new(code: i32, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
            data: None,
        }
    }

    /// The same with what in the request is wrong.
    #[must_use]
    pub fn at(self, data: Option<Mark>) -> Self {
        Self { data, ..self }
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

/// What is told to a client that has not asked, as one line, its newline included.
#[must_use]
pub fn notification(method: &str, params: &impl Serialize) -> String {
    let envelope = Notification {
        jsonrpc: VERSION,
        method,
        params,
    };
    let mut line = printable::json(&envelope).unwrap_or_default();
    line.push('\n');
    line
}

/// A notification as it stands on the line.
#[derive(Debug, Serialize)]
struct Notification<'a, P> {
    jsonrpc: &'static str,
    method: &'a str,
    params: &'a P,
}

/// A request: which method, with which parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The method's name.
    pub method: String,
    /// Its parameters, an object; none is as good as an empty one.
    pub params: Option<Value>,
}

impl Call {
    /// Its parameters as those of a method.
    ///
    /// # Errors
    /// [`RpcError`] when the method does not take them.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        let params = self.params.clone();
        let params = params.unwrap_or_else(|| Value::Object(Map::new()));
        serde_json::from_value(params).map_err(|error| {
            let message = format!("params of '{}': {error}", self.method);
            RpcError::new(INVALID_PARAMS, message)
        })
    }

    /// The request as one line, its newline included.
    #[must_use]
    pub fn line(&self, id: u64) -> String {
        let envelope = Envelope {
            jsonrpc: VERSION.to_owned(),
            id: Some(id.into()),
            method: self.method.clone(),
            params: self.params.clone(),
        };
        let mut line = printable::json(&envelope).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// A line that has been taken apart.
#[derive(Debug)]
pub struct Parsed {
    /// The id to reply to; `None` for a notification, which gets no reply.
    pub id: Option<Value>,
    /// What is asked for, or the error to reply with.
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
        call: Ok(Call {
            method: envelope.method,
            params: envelope.params,
        }),
    }
}

fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_number() || id.is_null()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(line: &str) -> i32 {
        parse(line.as_bytes()).call.unwrap_err().code
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
