//! Parts of a grammar in llguidance's dialect of Lark.

use llguidance::regex_to_lark;
use serde_json::Value as Json;

/// A text as it stands, as a Lark string. Lark's strings are JSON's, but for DEL, which must be escaped.
pub(crate) fn literal(text: &str) -> String {
    Json::from(text).to_string().replace('\x7f', "\\u007f")
}

/// A regular expression between slashes. `ascii` names the classes that match ASCII alone, as in JSON schema: `"dw"`.
pub(crate) fn regex(expression: &str, ascii: &str) -> String {
    format!("/{}/", regex_to_lark(expression, ascii))
}
