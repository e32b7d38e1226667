//! Templates that mean harm end in an error, soon and without much memory: each of these would run for years, take all
//! memory, or overflow the stack, if nobody counted.
#![allow(clippy::unwrap_used, reason = "tests")]

use glim_text::{AddedTokens, ChatRequest, ChatTemplate, TokenId};
use serde_json::json;

fn render(template: &str, content: &str, added: &[&str]) -> Result<String, String> {
    let added = (0..).zip(added);
    let added = AddedTokens::new(added.map(|(id, text)| ((*text).to_owned(), TokenId(id))));
    let request = ChatRequest::new(vec![json!({"role": "user", "content": content})]);
    let template = ChatTemplate::new(template).unwrap();
    let rendered = template.render(&request, &added);
    rendered
        .map(|rendered| rendered.text().to_owned())
        .map_err(|error| error.to_string())
}

#[track_caller]
fn refused(template: &str, words: &str) {
    let error = render(template, "x", &[]).unwrap_err();
    assert!(
        error.starts_with("the chat template failed, line "),
        "{error}"
    );
    assert!(error.contains(words), "{error}");
}

const OUT_OF_FUEL: &str = "out of fuel";

/// A list that holds itself twice, sixty times over: 2^60 elements when printed.
const LAUGHS: &str = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";

#[test]
fn values_that_hold_themselves_twice_are_not_printed_without_end() {
    for print in [
        "{{ ns.x }}",
        "{{ ns.x | tojson }}",
        "{{ ns.x | trim }}",
        "{{ raise_exception(ns.x) }}",
    ] {
        refused(&format!("{LAUGHS}{print}"), OUT_OF_FUEL);
    }
}

#[test]
fn separators_and_keys_are_paid_for() {
    let setup = "{% set big = 'a' * 1000000 %}";
    refused(
        &format!("{setup}{{{{ range(100000) | list | tojson(separators=[big, big]) }}}}"),
        OUT_OF_FUEL,
    );
    let template = format!(
        "{setup}{{% set ns = namespace(x={{big: 1}}) %}}{{% for i in range(20) %}}{{% set ns.x = [ns.x, ns.x] %}}\
         {{% endfor %}}{{{{ ns.x | tojson }}}}"
    );
    refused(&template, OUT_OF_FUEL);
}

#[test]
fn strings_that_double_and_methods_that_look_at_long_ones_are_paid_for() {
    refused(
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        OUT_OF_FUEL,
    );
    for call in [
        "s.strip()",
        "s.startswith('b')",
        "s.find('b')",
        "s.endswith([s, s])",
    ] {
        refused(
            &format!(
                "{{% set s = 'a' * 1000000 %}}{{% for i in range(100000) %}}{{% if {call} %}}{{% endif %}}{{% endfor %}}"
            ),
            OUT_OF_FUEL,
        );
    }
}

/// The engine takes a nested value down by recursion.
#[test]
fn deeply_nested_values_do_not_overflow_the_stack() {
    let nested = |depth: usize, print: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range({depth}) %}}{{% set ns.x = [ns.x] %}}{{% endfor %}}{print}"
        )
    };
    assert_eq!(
        render(&nested(100_000, "{{ ns.x | length }}"), "", &[]).unwrap(),
        "1"
    );
    let deepest = "[".repeat(60) + "ns.x" + &"]".repeat(60);
    refused(
        &format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(100000) %}}{{% set ns.x = {deepest} %}}{{% endfor %}}"
        ),
        OUT_OF_FUEL,
    );
    refused(&nested(200, "{{ ns.x }}"), "nested deeper than 128 levels");
    refused(
        &nested(200, "{{ ns.x | tojson }}"),
        "nested deeper than 128 levels",
    );
}

#[test]
fn a_content_full_of_token_texts_is_cut_in_linear_time() {
    let content = "<|user|> ".repeat(100_000);
    let text = render(
        "{% for part in messages[0].content.split(' ') %}{{ part }}{% endfor %}",
        &content,
        &["<|user|>"],
    );
    assert_eq!(text.unwrap(), content.replace(' ', ""));
}

/// Found by the fuzzer: the engine panics on these keys.
#[test]
fn keys_of_format_strings_are_refused_where_the_engine_would_panic() {
    for print in [
        "{{ '%(\u{e9})s' | format(a=1) }}",
        "{{ '%(\u{e9}' | format('a') }}",
        "{{ '{0[\u{e9}]}'.format('a') }}",
        "{{ '{0[a][\u{e9}'.format('a') }}",
    ] {
        refused(print, "expected a key of ASCII characters");
    }
    let sound = "{{ '%% %s \u{e9} %(a)s'[:5] | format('\u{e9}') }}{{ '{{[\u{e9}]}} {} \u{e9}[0]'.format('\u{e9}') }}";
    assert_eq!(
        render(sound, "", &[]).unwrap(),
        "% \u{e9}{[\u{e9}]} \u{e9} \u{e9}[0]"
    );
}

#[test]
fn widths_are_paid_for_before_anything_is_padded() {
    for print in [
        "{{ '{:9000000000}'.format('a') }}",
        "{{ '{:99999999999999999999999}'.format('a') }}",
    ] {
        refused(print, OUT_OF_FUEL);
    }
}
