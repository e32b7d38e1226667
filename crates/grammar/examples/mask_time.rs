//! How long grammars take: to compile, and for the mask of each token of a text.
//!
//! ```sh
//! cargo run --release -p glim-grammar --example mask_time -- VOCABULARY.gguf
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use glim_gguf::Gguf;
use glim_grammar::{Grammar, Matcher, Rule, Vocabulary};
use glim_text::{Special, TextModel};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("give a GGUF file with a tokenizer")?;
    let model = TextModel::from_gguf(&Gguf::open(path.as_ref())?)?;
    let begin = Instant::now();
    let vocabulary = Vocabulary::new(&model.tokenizer, model.tokenizer.vocab_size())?;
    println!(
        "vocabulary of {} tokens: {:?}",
        vocabulary.size(),
        begin.elapsed()
    );
    let prose = "The quick brown fox — naïve, café, 日本語 — jumps over the lazy dog. ".repeat(6);
    let order = json!({"id": 17, "customer": {"name": "Ada \"L\"", "email": "ada@example.org"},
        "items": [{"sku": "A-1", "count": 3, "price": 1.25}, {"sku": "B-2", "count": 1, "price": 20}], "note": prose});
    let order_schema = json!({"type": "object", "properties": {
        "id": {"type": "integer", "minimum": 1},
        "customer": {"type": "object", "properties": {"name": {"type": "string"}, "email": {"type": "string", "format": "email"}}, "required": ["name", "email"], "additionalProperties": false},
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z]-[0-9]+$"}, "count": {"type": "integer"}, "price": {"type": "number", "minimum": 0}}, "required": ["sku", "count"], "additionalProperties": false}},
        "note": {"type": "string", "maxLength": 10000}}, "required": ["id", "customer", "items"], "additionalProperties": false});
    let rows = [
        (
            "a schema of an order",
            Rule::JsonSchema(order_schema),
            order.to_string(),
        ),
        ("any object", Rule::JsonObject, order.to_string()),
        (
            "a string of up to 10000",
            Rule::JsonSchema(json!({"type": "string", "maxLength": 10_000})),
            json!(prose).to_string(),
        ),
        (
            "a string with a pattern",
            Rule::JsonSchema(json!({"type": "string", "pattern": "lazy.*fox"})),
            json!(prose).to_string(),
        ),
        (
            "a regular expression",
            Rule::Regex("([\\w ,.—-]+ ?)+".to_owned()),
            prose.clone(),
        ),
        (
            "one of 1000 choices",
            Rule::Choice((0..1000).map(|n| format!("choice number {n}")).collect()),
            "choice number 77".to_owned(),
        ),
    ];
    println!(
        "{:26} {:>10} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "rule", "compile", "tokens", "mean", "median", "p99", "most"
    );
    for (name, rule, text) in rows {
        let begin = Instant::now();
        let grammar = Grammar::new(&vocabulary, &rule)?;
        let compile = begin.elapsed();
        let mut matcher = Matcher::new(&grammar, false);
        let mut mask = vec![0u32; vocabulary.mask_words()];
        let mut times = Vec::new();
        for id in model.tokenizer.encode(&text, Special::Text)? {
            mask.fill(u32::MAX);
            let begin = Instant::now();
            matcher.restrict(&mut mask)?;
            times.push(begin.elapsed());
            matcher.accept(id)?;
        }
        times.sort();
        let mean = times.iter().sum::<Duration>() / u32::try_from(times.len())?;
        let at = |part: usize| times[(times.len() - 1) * part / 100];
        println!(
            "{name:26} {compile:>10.1?} {:>7} {mean:>9.1?} {:>9.1?} {:>9.1?} {:>9.1?}",
            times.len(),
            at(50),
            at(99),
            at(100)
        );
    }
    Ok(())
}
