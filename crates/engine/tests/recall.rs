//! Recall from long lists: what the indexer is for. A wrong one answers an eighth of these (its model card says so).
//!
//! 24 lists of 40 to 90 entries, a question about one of them, greedy answers; fast math must answer as exact math does, and
//! at least 20 answers must be right.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;

use glim_cpu::{CpuBackend, CpuOptions, Math};
use glim_engine::{Engine, EngineOptions, GenerateRequest};
use glim_gguf::Gguf;
use glim_model::{Checkpoint, Inventory};
use glim_testkit::assets;
use glim_text::{ChatRequest, ControlTokens, Detokenizer, TextModel, TokenId};

const LISTS: u64 = 24;

/// Names of the model's own world, and some that it has not seen.
const NAMES: [&str; 24] = [
    "Jane", "Vera", "Mia", "Jack", "Pip", "Bru", "Button", "Max", "Sage", "Tess", "Ella", "Leo",
    "Maya", "Noah", "Ben", "Lucy", "Paul", "Maple", "Bramble", "Draim", "Shevo", "Klat", "Zean",
    "Voo",
];

/// A seeded list: the conversation, and the answer.
fn list(seed: u64) -> (String, String) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let length = 40 + random(51);
    let mut rooms: Vec<usize> = Vec::new();
    while rooms.len() < length {
        let room = 101 + random(899);
        if !rooms.contains(&room) {
            rooms.push(room);
        }
    }
    let entries: Vec<(usize, &str)> = rooms
        .into_iter()
        .map(|room| (room, NAMES[random(NAMES.len())]))
        .collect();
    let (room, name) = entries[random(length)];
    let lines: String = entries
        .iter()
        .map(|(r, n)| format!("In room {r} lives {n}.\n"))
        .collect();
    let question = format!("Here is a list.\n\n{lines}\nWho lives in room {room}?");
    (question, format!("In room {room} lives {name}."))
}

fn answers(math: Math, prompts: &[Vec<TokenId>], text: &TextModel) -> Vec<String> {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let backend = CpuBackend::new(CpuOptions {
        math,
        ..CpuOptions::default()
    });
    let options = EngineOptions {
        context: Some(2048),
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(
        Inventory::of(&checkpoint),
        &checkpoint,
        Box::new(backend),
        options,
    )
    .unwrap();
    let answer = |prompt: &Vec<TokenId>| {
        let request = GenerateRequest {
            max_tokens: Some(20),
            stop_tokens: text.tokenizer.stop_ids().to_vec(),
            ..GenerateRequest::new(prompt.clone())
        };
        let out = engine
            .generate(&request, |_| ControlFlow::Continue(()))
            .unwrap();
        let mut detokenizer = Detokenizer::new(text.tokenizer.clone(), ControlTokens::Skip);
        let words: String = out.tokens.iter().map(|t| detokenizer.push(*t)).collect();
        words + &detokenizer.finish()
    };
    prompts.iter().map(answer).collect()
}

#[test]
fn fast_math_recalls_what_exact_math_recalls() {
    let text = TextModel::from_gguf(&Gguf::open(&assets::tiny_glm5()).unwrap()).unwrap();
    let template = text.template.as_ref().unwrap();
    let (questions, expected): (Vec<String>, Vec<String>) = (1..=LISTS).map(list).unzip();
    let prompt = |question: &String| {
        let message = serde_json::json!({"role": "user", "content": question});
        let mut request = ChatRequest::new(vec![message]);
        request
            .kwargs
            .insert("enable_thinking".into(), false.into());
        let rendered = template
            .render(&request, text.tokenizer.added_tokens())
            .unwrap();
        text.tokenizer.encode_rendered(&rendered).unwrap()
    };
    let prompts: Vec<Vec<TokenId>> = questions.iter().map(prompt).collect();
    let mean = prompts.iter().map(Vec::len).sum::<usize>() / prompts.len();
    assert!(mean > 400, "the lists reach far beyond index_topk: {mean}");

    let exact = answers(Math::Exact, &prompts, &text);
    let fast = answers(Math::Fast, &prompts, &text);
    let right = fast.iter().zip(&expected).filter(|(a, b)| a == b).count();
    println!("{right} of {LISTS} right, mean prompt {mean} tokens");
    assert_eq!(fast, exact);
    assert!(right >= 20, "{right} right: {fast:?}\n{expected:?}");
}
