//! The keywords of JSON schema that are not followed, and why.

/// Keywords that say nothing about which values are valid.
const ANNOTATIONS: [&str; 25] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "enumDescriptions",
    "enumNames",
    "example",
    "examples",
    "externalDocs",
    "id",
    "markdownDescription",
    "propertyOrdering",
    "readOnly",
    "strict",
    "title",
    "writeOnly",
];

/// Keywords that bind the value, and that no automaton here follows, with what to do instead.
const UNSUPPORTED: [(&str, &str); 16] = [
    ("$dynamicRef", "use `$ref`"),
    ("$recursiveRef", "use `$ref`"),
    ("contains", "describe all items by `items` or `prefixItems`"),
    ("dependencies", "describe the cases by `anyOf`"),
    ("dependentRequired", "describe the cases by `anyOf`"),
    ("dependentSchemas", "describe the cases by `anyOf`"),
    ("else", "describe the cases by `anyOf`"),
    ("if", "describe the cases by `anyOf`"),
    (
        "maxContains",
        "describe all items by `items` or `prefixItems`",
    ),
    (
        "minContains",
        "describe all items by `items` or `prefixItems`",
    ),
    ("not", "describe what is allowed instead"),
    ("propertyNames", "use `patternProperties`"),
    ("then", "describe the cases by `anyOf`"),
    ("unevaluatedItems", "use `items`"),
    ("unevaluatedProperties", "use `additionalProperties`"),
    ("uniqueItems", "leave it out and check the answer"),
];

/// True for keywords without a meaning for validity.
pub(super) fn is_annotation(keyword: &str) -> bool {
    ANNOTATIONS.contains(&keyword) || keyword.starts_with("x-")
}

/// What to do instead of a keyword of JSON schema that is not followed; `None` if JSON schema has no such keyword.
pub(super) fn instead(keyword: &str) -> Option<&'static str> {
    UNSUPPORTED
        .iter()
        .find(|(name, _)| *name == keyword)
        .map(|(_, advice)| *advice)
}

/// A name as a segment of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
