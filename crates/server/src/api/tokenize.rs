//! `/tokenize`, `/detokenize`, `/apply-template` and `/v1/chat/completions/render`: what the model reads, without asking it.
//!
//! vLLM and llama.cpp have endpoints of the first two names with different fields; which form a request has is decided by its keys, and
//! the answer is in the same form. Unlike theirs, a text of the request never yields control tokens unless `parse_special` asks for it:
//! `<|user|>` in a text is eight characters, so counts and ids are those that a message with this text would have.

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use glim_text::{Special, TokenId, starts_in_reasoning};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::chat::prepare;
use super::chat::request::ChatRequest;
use super::chat::response::ids;
use crate::error::ApiError;
use crate::http::body::JsonBody;
use crate::model::Model;
use crate::state::AppState;

/// The endpoints.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(render))
        .route("/v1/chat/completions/render", post(render))
}

/// Request of `/tokenize`: one of `prompt` (vLLM), `messages` (vLLM, with the chat's other fields) and `content` (llama.cpp).
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(example = json!({"prompt": "Hello", "return_token_strs": true}))]
pub(crate) struct TokenizeRequest {
    /// A text.
    pub(crate) prompt: Option<String>,
    /// A text.
    pub(crate) content: Option<String>,
    /// With `prompt`: begin with the token that begins every text, if the model has one. Left out: true.
    pub(crate) add_special_tokens: Option<bool>,
    /// The same with `content`. Left out: false.
    pub(crate) add_special: Option<bool>,
    /// Control tokens that stand in the text are read as such. Left out: false.
    pub(crate) parse_special: Option<bool>,
    /// With `prompt` and `messages`: add the text of each token.
    pub(crate) return_token_strs: Option<bool>,
    /// With `content`: give each token with its text, or its bytes where these are no text.
    pub(crate) with_pieces: Option<bool>,
    #[serde(flatten)]
    pub(crate) chat: ChatRequest,
}

/// Response of `/tokenize`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Tokenized {
    /// vLLM's form.
    Counted {
        count: usize,
        /// Longest sequence, prompt and answer, in tokens.
        max_model_len: usize,
        tokens: Vec<u32>,
        /// The text of each token, U+FFFD for what is no whole character.
        #[schema(required = true)]
        token_strs: Option<Vec<String>>,
    },
    /// llama.cpp's form.
    Ids { tokens: Vec<u32> },
    /// llama.cpp's form, with pieces.
    Pieces { tokens: Vec<PieceOf> },
}

/// A token and what it stands for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PieceOf {
    id: u32,
    piece: TextOrBytes,
}

/// A text, or bytes that are none.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum TextOrBytes {
    Text(String),
    Bytes(Vec<u8>),
}

/// Request of `/detokenize`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(example = json!({"tokens": [100, 101, 102]}))]
pub(crate) struct DetokenizeRequest {
    /// The served model's name; left out: the one there is.
    pub(crate) model: Option<String>,
    pub(crate) tokens: Vec<u32>,
}

/// Response of `/detokenize`: the text, control tokens included, under the names that vLLM and llama.cpp have for it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Detokenized {
    prompt: String,
    content: String,
}

/// Response of `/apply-template` and `/v1/chat/completions/render`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RenderedPrompt {
    /// The prompt as the model's template renders it.
    prompt: String,
    /// Its tokens.
    count: usize,
    /// Longest sequence, prompt and answer, in tokens.
    max_model_len: usize,
    /// Whether the answer begins inside reasoning.
    starts_in_reasoning: bool,
    /// If `return_token_ids` asks for it: what the model reads. Not the same as tokenizing `prompt`, since control tokens that come from
    /// messages are text.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

async fn tokenize(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<TokenizeRequest>,
) -> Result<Json<Tokenized>, ApiError> {
    state.model()?;
    let work = state.work(move |state| {
        state.check_model_name(request.chat.model.as_deref())?;
        tokens_of(state.model()?, &request)
    });
    work.await.map(Json)
}

fn tokens_of(model: &Model, request: &TokenizeRequest) -> Result<Tokenized, ApiError> {
    let has_messages = !request.chat.messages.is_empty();
    let special = match request.parse_special {
        Some(true) => Special::Template,
        _ => Special::Text,
    };
    let tokens = match (&request.prompt, &request.content, has_messages) {
        (Some(prompt), None, false) => encode(
            model,
            prompt,
            special,
            request.add_special_tokens != Some(false),
        )?,
        (None, Some(content), false) => {
            let tokens = encode(model, content, special, request.add_special == Some(true))?;
            return Ok(in_llamas_form(model, &tokens, request.with_pieces));
        }
        (None, None, true) => prepare::prompt(model, &request.chat)?.tokens,
        _ => {
            return Err(ApiError::invalid(
                "prompt",
                "expected one of prompt, content and messages, and no two of them",
            ));
        }
    };
    let text = |token: &TokenId| model.token(*token).0;
    Ok(Tokenized::Counted {
        count: tokens.len(),
        max_model_len: model.context,
        tokens: ids(&tokens),
        token_strs: (request.return_token_strs == Some(true))
            .then(|| tokens.iter().map(text).collect()),
    })
}

/// Encodes a text, with or without the token that begins every text.
fn encode(
    model: &Model,
    text: &str,
    special: Special,
    with_bos: bool,
) -> Result<Vec<TokenId>, ApiError> {
    let tokenizer = &model.tokenizer;
    let mut tokens = tokenizer.encode(text, special)?;
    if tokenizer.vocab().add_bos && !with_bos {
        tokens.drain(..tokenizer.bos().iter().len());
    }
    Ok(tokens)
}

fn in_llamas_form(model: &Model, tokens: &[TokenId], with_pieces: Option<bool>) -> Tokenized {
    if with_pieces != Some(true) {
        return Tokenized::Ids {
            tokens: ids(tokens),
        };
    }
    let piece = |token: &TokenId| {
        let bytes = model.tokenizer.token_bytes(*token).unwrap_or_default();
        PieceOf {
            id: token.0,
            piece: match std::str::from_utf8(bytes) {
                Ok(text) => TextOrBytes::Text(text.to_owned()),
                Err(_) => TextOrBytes::Bytes(bytes.to_vec()),
            },
        }
    };
    Tokenized::Pieces {
        tokens: tokens.iter().map(piece).collect(),
    }
}

async fn detokenize(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<DetokenizeRequest>,
) -> Result<Json<Detokenized>, ApiError> {
    state.model()?;
    let work = state.work(move |state| {
        state.check_model_name(request.model.as_deref())?;
        text_of(state.model()?, &request.tokens)
    });
    let text = work.await?;
    Ok(Json(Detokenized {
        prompt: text.clone(),
        content: text,
    }))
}

fn text_of(model: &Model, tokens: &[u32]) -> Result<String, ApiError> {
    let mut bytes = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        match model.tokenizer.token_bytes(TokenId(*token)) {
            Some(more) => bytes.extend_from_slice(more),
            None => {
                let most = model.tokenizer.vocab_size().saturating_sub(1);
                return Err(ApiError::invalid(
                    format!("tokens[{index}]"),
                    format!("tokens[{index}] is {token}: expected 0 to {most}"),
                ));
            }
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn render(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<ChatRequest>,
) -> Result<Json<RenderedPrompt>, ApiError> {
    state.model()?;
    let work = state.work(move |state| {
        state.check_model_name(request.model.as_deref())?;
        let model = state.model()?;
        let prompt = prepare::prompt(model, &request)?;
        let starts_in_reasoning =
            prompt.continued.is_none() && starts_in_reasoning(&prompt.rendered);
        let wants_ids = request.sampling.return_token_ids == Some(true);
        Ok(RenderedPrompt {
            prompt: prompt.rendered.text().to_owned(),
            count: prompt.tokens.len(),
            max_model_len: model.context,
            starts_in_reasoning,
            prompt_token_ids: wants_ids.then(|| ids(&prompt.tokens)),
        })
    });
    work.await.map(Json)
}
