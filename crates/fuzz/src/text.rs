//! Tokenizers: the keys of a GGUF file, and `tokenizer.json`.

use std::sync::Arc;

use glim_gguf::Gguf;
use glim_text::{
    ControlTokens, Detokenizer, Special, TextError, TextModel, TextSource, from_gguf, from_hf,
};

use crate::{assert_named, in_folder};

/// What the file is called in messages.
const NAME: &str = "fuzz.gguf";
/// Text with what pre-tokenizers and added tokens care for.
const TEXT: &str = "Hello, \u{e9}t\u{e9} 12345!\n\n\t <|user|>don't\u{4f60}\u{597d} \u{1f600}  x";

/// Takes the bytes for a GGUF file and its keys for a tokenizer.
pub(crate) fn from_gguf(data: &[u8]) {
    let gguf = match Gguf::from_bytes(NAME, data.to_vec()) {
        Ok(gguf) => gguf,
        Err(error) => return assert_named(&error, &[NAME]),
    };
    use_source(from_gguf::read(&gguf), NAME);
}

/// Takes the bytes for the `tokenizer.json` of a folder.
pub(crate) fn from_json(data: &[u8]) {
    in_folder(&[("tokenizer.json", data)], |folder| {
        use_source(from_hf::read(folder), &folder.display().to_string());
    });
}

/// Encodes and decodes with whatever came out.
fn use_source(source: Result<TextSource, TextError>, place: &str) {
    // What only shows when the parts are put together is said of the tokenizer or the template.
    let places = [place, "tokenizer", "the chat template"];
    let model = match source.and_then(TextModel::new) {
        Ok(model) => model,
        Err(error) => return assert_named(&error, &places),
    };
    for special in [Special::Text, Special::Template] {
        let ids = match model.tokenizer.encode(TEXT, special) {
            Ok(ids) => ids,
            Err(error) => {
                assert_named(&error, &["tokenizer", "vocabulary", "text"]);
                continue;
            }
        };
        let mut detokenizer = Detokenizer::new(Arc::clone(&model.tokenizer), ControlTokens::Show);
        for &id in &ids {
            assert!((id.0 as usize) < model.tokenizer.vocab_size());
            detokenizer.push(id);
        }
        detokenizer.finish();
    }
    for id in model.tokenizer.stop_ids() {
        let _text = model.tokenizer.token_text(*id);
    }
}
