//! What the tests of this crate share: the built-in model's vocabulary, and random answers under a mask.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod validate;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use glim_gguf::Gguf;
use glim_grammar::{Grammar, GrammarError, Matcher, Rule, Vocabulary};
use glim_text::{Special, TextModel, TokenId, TokenKind, Tokenizer};

/// Rows of a head that is larger than the tokenizer.
pub const PAD_ROWS: usize = 37;

pub static MODEL: LazyLock<TextModel> = LazyLock::new(|| {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-glm5/tiny-glm5-q8_0.gguf");
    TextModel::from_gguf(&Gguf::open(&path).unwrap()).unwrap()
});

pub static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let tokenizer = tokenizer();
    Vocabulary::new(&tokenizer, tokenizer.vocab_size() + PAD_ROWS).unwrap()
});

pub fn tokenizer() -> Arc<Tokenizer> {
    Arc::clone(&MODEL.tokenizer)
}

pub fn grammar(rule: &Rule) -> Result<Grammar, GrammarError> {
    Grammar::new(&VOCABULARY, rule)
}

pub fn id(text: &str) -> TokenId {
    tokenizer().added_tokens().id_of(text).unwrap()
}

pub fn stop() -> TokenId {
    tokenizer().stop_ids()[0]
}

/// Ids of a text in which added tokens count.
pub fn template_ids(text: &str) -> Vec<TokenId> {
    tokenizer().encode(text, Special::Template).unwrap()
}

/// The allowed tokens.
pub fn allowed(matcher: &mut Matcher) -> Vec<TokenId> {
    let mut mask = vec![u32::MAX; VOCABULARY.mask_words()];
    matcher.restrict(&mut mask).unwrap();
    bits(&mask)
}

pub fn bits(mask: &[u32]) -> Vec<TokenId> {
    let ids = 0..u32::try_from(mask.len() * 32).unwrap();
    ids.filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
        .map(TokenId)
        .collect()
}

/// Whether an answer of these tokens, and then a stop token, is allowed; or how many tokens are.
pub fn follow(grammar: &Grammar, in_reasoning: bool, ids: &[TokenId]) -> Result<(), usize> {
    let mut matcher = Matcher::new(grammar, in_reasoning);
    for (count, id) in ids.iter().chain(&[stop()]).enumerate() {
        let may = allowed_bit(&mut matcher, *id);
        let accepted = matcher.clone().accept(*id).is_ok();
        assert_eq!(may, accepted, "mask and matcher differ at token {count}");
        if !may {
            return Err(count);
        }
        matcher.accept(*id).unwrap();
    }
    Ok(())
}

pub fn allowed_bit(matcher: &mut Matcher, id: TokenId) -> bool {
    let mut mask = vec![u32::MAX; VOCABULARY.mask_words()];
    matcher.restrict(&mut mask).unwrap();
    mask[id.0 as usize / 32] >> (id.0 % 32) & 1 == 1
}

/// Whether a text without tags is a whole answer.
pub fn accepts(grammar: &Grammar, text: &str) -> bool {
    follow(
        grammar,
        false,
        &tokenizer().encode(text, Special::Text).unwrap(),
    )
    .is_ok()
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n).unwrap()).unwrap()
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// After so many tokens an answer turns to its end.
const PATIENCE: usize = 40;

/// An answer drawn at random from what is allowed, without its stop token. First anything goes, then what closes is preferred.
pub fn walk(grammar: &Grammar, seed: u64) -> Vec<TokenId> {
    let mut random = Random(seed);
    let mut matcher = Matcher::new(grammar, false);
    let mut ids = Vec::new();
    // Different answers for different seeds: some end early.
    let patience = random.below(PATIENCE);
    loop {
        let mut choices = allowed(&mut matcher);
        choices.retain(|id| {
            tokenizer()
                .token_text(*id)
                .is_none_or(|text| text != "<think>")
        });
        assert!(!choices.is_empty(), "nothing is allowed after {ids:?}");
        let may_stop = choices.iter().any(|id| tokenizer().stop_ids().contains(id));
        let late = ids.len() > patience;
        choices.retain(|id| !tokenizer().stop_ids().contains(id));
        if may_stop && (late || choices.is_empty() || random.chance(20)) {
            matcher.accept(stop()).unwrap();
            assert!(
                allowed(&mut matcher)
                    .iter()
                    .all(|id| tokenizer().stop_ids().contains(id))
            );
            return ids;
        }
        let closing = closing(&choices);
        let from = if late && !closing.is_empty() && random.chance(80) {
            &closing
        } else if random.chance(30) {
            // Short tokens, so that characters are cut.
            choices.sort_by_key(|id| tokenizer().token_bytes(*id).unwrap().len());
            choices.truncate(64);
            &choices
        } else {
            &choices
        };
        let next = from[random.below(from.len())];
        matcher.accept(next).unwrap();
        ids.push(next);
        assert!(
            ids.len() < 4000,
            "the answer does not end: {:?}",
            text_of(&ids)
        );
    }
}

/// The tokens that lead towards the end: of a string if we are in one, or else of a list, an object, a call.
fn closing(choices: &[TokenId]) -> Vec<TokenId> {
    let of = |wanted: fn(&[u8]) -> bool| -> Vec<TokenId> {
        let is_normal = |id: &&TokenId| tokenizer().kind(**id) == Some(TokenKind::Normal);
        let fits = |id: &&TokenId| wanted(tokenizer().token_bytes(**id).unwrap());
        choices
            .iter()
            .filter(is_normal)
            .filter(fits)
            .copied()
            .collect()
    };
    let tags: Vec<TokenId> = choices
        .iter()
        .filter(|id| tokenizer().kind(**id) != Some(TokenKind::Normal))
        .filter(|id| tokenizer().token_text(**id).unwrap().starts_with("</"))
        .copied()
        .collect();
    let brackets = of(|bytes| matches!(bytes, b"]" | b"}"));
    let quote = of(|bytes| bytes == b"\"");
    let in_string = brackets.len() == 2;
    [tags, if in_string { vec![] } else { brackets }, quote]
        .into_iter()
        .find(|ids| !ids.is_empty())
        .unwrap_or_default()
}

/// The text of tokens; panics if it is not UTF-8.
pub fn text_of(ids: &[TokenId]) -> String {
    let bytes = ids
        .iter()
        .flat_map(|id| tokenizer().token_bytes(*id).unwrap().to_vec());
    String::from_utf8(bytes.collect()).unwrap()
}
