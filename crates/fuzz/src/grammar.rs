//! Schemas of answers and of tools: whatever they say, an error names its place, or the masks lead on.

use std::sync::LazyLock;

use glim_grammar::{Grammar, GrammarError, MatchError, Matcher, Rule, Vocabulary};
use glim_text::{StopStrings, TextModel, TokenId};
use serde_json::{Value as Json, json};

use crate::{assert_named, in_folder};

/// Bytes, a few merges, GLM's tags and tokens that end a turn.
const TOKENIZER: &[u8] = include_bytes!("../../../fuzz/corpus/tokenizer_json/tiny.json");

/// Tokens that are drawn under a grammar.
const STEPS: usize = 64;

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let model = in_folder(&[("tokenizer.json", TOKENIZER)], TextModel::from_hf);
    let model = model.unwrap_or_else(|error| panic!("the seed: {error}"));
    let rows = model.tokenizer.vocab_size() + 1;
    Vocabulary::new(&model.tokenizer, rows).unwrap_or_else(|error| panic!("the seed: {error}"))
});

/// Takes the bytes for a schema: of an answer, and of a tool's arguments.
pub(crate) fn schema(data: &[u8]) {
    let Ok(schema) = serde_json::from_slice::<Json>(data) else {
        return;
    };
    let seed = data.iter().fold(data.len(), |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(usize::from(*byte))
    });
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema.clone()}});
    let calls = Rule::ToolCalls {
        tools: vec![tool],
        only: None,
        parallel: true,
    };
    for rule in [Rule::JsonSchema(schema), calls] {
        match Grammar::new(&VOCABULARY, &rule) {
            Ok(grammar) => draw(&grammar, seed),
            Err(error @ GrammarError::TooLarge { .. }) => assert_named(&error, &["limit"]),
            Err(error) => assert_named(&error, &["#", "tools"]),
        }
    }
}

/// Draws tokens that the masks allow: there is always one, and the matcher takes it.
fn draw(grammar: &Grammar, mut seed: usize) {
    let mut matcher = Matcher::new(grammar, false);
    for _ in 0..STEPS {
        let mut mask = vec![u32::MAX; VOCABULARY.mask_words()];
        match matcher.restrict(&mut mask) {
            Ok(()) => {}
            Err(MatchError::Exhausted { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        let bits = (0u32..).zip(&mask).flat_map(|(word, bits)| {
            (0..32).filter_map(move |bit| ((bits >> bit) & 1 == 1).then_some(32 * word + bit))
        });
        let allowed: Vec<u32> = bits.collect();
        assert!(!allowed.is_empty(), "no token is allowed");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let drawn = TokenId(allowed[(seed >> 33) % allowed.len()]);
        match matcher.accept(drawn) {
            Ok(()) => {}
            Err(MatchError::Exhausted { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes the lines up to an empty one for stop strings and the rest for a text: its pieces do not matter.
pub(crate) fn stop_strings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (strings, text) = text.split_once("\n\n").unwrap_or((&text, ""));
    let strings: Vec<String> = strings.lines().map(str::to_owned).collect();
    let whole = stopped(&strings, [text]);
    let characters = text
        .char_indices()
        .map(|(at, c)| &text[at..at + c.len_utf8()]);
    assert_eq!(stopped(&strings, characters), whole);
    let (before, matched) = whole;
    match matched {
        Some(which) => assert!(text[before.len()..].starts_with(&strings[which])),
        None => {
            assert_eq!(before, text);
            let mut real = strings.iter().filter(|string| !string.is_empty());
            assert!(!real.any(|string| text.contains(string.as_str())));
        }
    }
}

/// The text up to a stop string, and which that was.
fn stopped<'a>(
    strings: &[String],
    pieces: impl IntoIterator<Item = &'a str>,
) -> (String, Option<usize>) {
    let mut stops = StopStrings::new(strings.to_vec());
    let (mut text, mut matched) = (String::new(), None);
    for piece in pieces {
        let stopped = stops.push(piece);
        text += &stopped.text;
        matched = matched.or(stopped.matched);
    }
    (text + &stops.finish(), matched)
}
