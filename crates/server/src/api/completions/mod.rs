//! `/v1/completions`: text goes on where the prompt ends, without a template.

pub(crate) mod request;
pub(crate) mod response;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use glim_text::{Special, TokenId};

use self::request::{CompletionRequest, Prompts};
use self::response::CompletionStream;
use crate::api::chat::prepare::{raw_form, response_id, truncate};
use crate::api::chat::stream_options;
use crate::error::ApiError;
use crate::generation;
use crate::generation::choice::Reading;
use crate::generation::sampling::{Draws, MAX_TOP_LOGPROBS, max_tokens, whole};
use crate::generation::spec::Spec;
use crate::generation::structure::{self, Bounds};
use crate::http::body::JsonBody;
use crate::http::observe::Arrived;
use crate::http::sse;
use crate::model::Model;
use crate::state::AppState;

/// Tokens of an answer if the request does not say, as in the OpenAI API.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Most prompts of a request.
const MAX_PROMPTS: usize = 128;

/// Goes on with a text.
pub(crate) async fn complete(
    State(state): State<AppState>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    JsonBody(request): JsonBody<CompletionRequest>,
) -> Result<Response, ApiError> {
    let streams = request.stream == Some(true);
    let options = stream_options(streams, request.stream_options)?;
    state.model()?;
    let (spec, echoed) = state
        .work(move |state| prepare(state, state.model()?, request))
        .await?;
    let mut generation = generation::start(&state, spec, arrived).await?;
    if streams {
        let printer = CompletionStream::new(&state, options, echoed);
        return Ok(sse::respond(&state, generation, printer));
    }
    let answers = generation.finish().await?;
    let model = state.model()?;
    Ok(response::print(&generation, answers, &echoed, model).into_response())
}

/// The request for the engine, and by prompt the text that answers begin with.
fn prepare(
    state: &AppState,
    model: &Model,
    request: CompletionRequest,
) -> Result<(Spec, Vec<String>), ApiError> {
    let name = state.check_model_name(request.model.as_deref())?;
    if !request.unknown.is_empty() {
        let fields: Vec<&String> = request.unknown.keys().collect();
        tracing::debug!(?fields, "fields of the request are not known and ignored");
    }
    let sampling = &request.sampling;
    let n = sampling.choices()?;
    let logprobs = whole("logprobs", request.logprobs, 0..=MAX_TOP_LOGPROBS)?;
    let echoes = request.echo == Some(true);
    refuse_unsupported(&request, n, echoes && logprobs.is_some())?;
    let defaults = &state.config().defaults;
    let limit = max_tokens("max_tokens", request.max_tokens, defaults)?;
    let limit = limit.unwrap_or(DEFAULT_MAX_TOKENS);

    let mut prompts = prompts(model, request.prompt)?;
    for prompt in &mut prompts {
        let side = request.truncation_side.unwrap_or_default();
        truncate(prompt, request.truncate_prompt_tokens, side, model.context)?;
    }
    let mut echoed = vec![String::new(); prompts.len()];
    if echoes {
        for (text, prompt) in echoed.iter_mut().zip(&prompts) {
            let bytes = prompt
                .iter()
                .filter_map(|token| model.tokenizer.token_bytes(*token));
            *text = String::from_utf8_lossy(&bytes.collect::<Vec<_>>().concat()).into_owned();
        }
    }
    let wanted = structure::wanted(
        request.response_format.as_ref(),
        request.structured_outputs.as_ref(),
        &request.guided,
    )?;
    let constraint = structure::constraint(model, wanted, Bounds::default())?;
    let draws = Draws {
        tokenizer: &model.tokenizer,
        vocab_size: model.vocab_size,
        defaults,
    };
    let logprobs = logprobs.map(|n| n as usize);
    let generate = |prompt: Vec<TokenId>| {
        let mut request = sampling.request(prompt, Some(limit), logprobs, &draws)?;
        request.constraint = constraint.clone().boxed();
        Ok(request)
    };
    let spec = Spec {
        id: response_id(sampling.request_id.as_deref())?,
        model: name,
        prompts: prompts
            .into_iter()
            .map(generate)
            .collect::<Result<_, ApiError>>()?,
        n,
        reading: Reading {
            form: raw_form(sampling.skip_special_tokens),
            stops: sampling.stop_strings()?,
            include_stop: sampling.include_stop_str_in_output == Some(true),
            stop_tokens: sampling.own_stop_tokens(model.vocab_size)?,
            hide_reasoning: false,
            one_call: false,
            named_call: false,
        },
        prompt_text: None,
        echo: None,
        tokens_as_ids: sampling.return_tokens_as_token_ids == Some(true),
        return_token_ids: sampling.return_token_ids == Some(true),
        timings: request.timings_per_token == Some(true),
    };
    Ok((spec, echoed))
}

fn refuse_unsupported(
    request: &CompletionRequest,
    n: u32,
    echoes_logprobs: bool,
) -> Result<(), ApiError> {
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::invalid(
            "suffix",
            "suffix is not supported: the model cannot fill in a middle",
        ));
    }
    if let Some(best_of) = request.best_of
        && best_of != i64::from(n)
    {
        return Err(ApiError::invalid(
            "best_of",
            format!("best_of is {best_of}: expected {n}, as n is"),
        ));
    }
    if echoes_logprobs {
        return Err(ApiError::invalid(
            "echo",
            "echo with logprobs is not supported: log-probabilities of the prompt are not computed",
        ));
    }
    Ok(())
}

/// Token ids of all prompts.
fn prompts(model: &Model, prompt: Option<Prompts>) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let encode = |text: &String| Ok(model.tokenizer.encode(text, Special::Template)?);
    let own = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect();
    let prompts: Vec<Vec<TokenId>> = match prompt {
        None => {
            return Err(ApiError::invalid(
                "prompt",
                "prompt is missing: expected a string, token ids, or a list of either",
            ));
        }
        Some(Prompts::Text(text)) => vec![encode(&text)?],
        Some(Prompts::Tokens(ids)) => vec![own(ids)],
        Some(Prompts::Texts(texts)) => {
            texts.iter().map(encode).collect::<Result<_, ApiError>>()?
        }
        Some(Prompts::TokenLists(lists)) => lists.into_iter().map(own).collect(),
    };
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
        return Err(ApiError::invalid(
            "prompt",
            format!("there are {} prompts: expected 1 to {MAX_PROMPTS}", prompts.len()),
        ));
    }
    Ok(prompts)
}
