//! The model's own chat template (Jinja), rendered byte for byte as Python's transformers renders it.
//!
//! The engine is minijinja. What `_compile_jinja_template` of transformers (`utils/chat_template_utils.py`) sets up is
//! set up here: `trim_blocks`, `lstrip_blocks`, `break` and `continue`, `{% generation %}` blocks, `raise_exception`,
//! `strftime_now`, and a `tojson` that is Python's `json.dumps` without HTML escapes. Python's string and dictionary
//! methods and its way of printing values are in [`methods`] and [`python`].
//!
//! Two things are done to the messages first, as servers do them, since templates expect it: `arguments` of past tool
//! calls that arrive as a JSON string become an object, and `reasoning` is also offered as `reasoning_content`. An
//! assistant's `content: null` becomes the empty string (Python would print `None`), and the role `developer` becomes
//! `system` unless the template knows it. Content parts (`[{"type": "text", …}]`) are passed on as they are.

mod format;
mod json;
mod methods;
mod prepare;
mod python;
mod strftime;

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde_json::Value as Json;

use crate::taint::{Marked, Marker};
use crate::{AddedTokens, TextError};

/// The most work that one rendering may do, in the engine's units: an instruction, or [`FUEL_BYTES`] produced, which makes
/// half a gigabyte. A prompt of a million characters needs about a sixteenth of it. Our own filters and methods pay as the
/// engine's do ([`pay`]).
const MAX_TEMPLATE_FUEL: u64 = 1 << 23;
/// Bytes for a unit of fuel.
const FUEL_BYTES: usize = 64;
/// What it takes to print one value, or to call one method: as long as a few instructions.
const STEP_FUEL: u64 = 4;
/// Deepest nesting of values that is printed or written as JSON.
const MAX_DEPTH: usize = 128;
/// Stack of a rendering, in bytes. A template can nest lists once for each unit of fuel, and the engine takes such a value
/// down by recursion, about 100 bytes a level. It is address space; memory is what is touched.
const STACK_BYTES: usize = 1 << 30;

/// The name under which the template is registered; without an extension nothing is HTML-escaped.
const NAME: &str = "chat";

/// The variable that holds the Unix time of the rendering, for `strftime_now`.
const NOW: &str = "__now";

/// A conversation and what goes with it.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// The messages, as in the OpenAI API: objects with `role`, `content` and perhaps `tool_calls`,
    /// `reasoning_content`, …
    pub messages: Vec<Json>,
    /// Tool declarations as in the OpenAI API; key order is kept.
    pub tools: Option<Vec<Json>>,
    /// Whether the prompt ends where the assistant shall speak.
    pub add_generation_prompt: bool,
    /// Further template variables: `enable_thinking`, `clear_thinking`, `reasoning_effort`, …
    pub kwargs: serde_json::Map<String, Json>,
}

impl ChatRequest {
    /// These messages, no tools, ending where the assistant shall speak.
    pub fn new(messages: Vec<Json>) -> Self {
        Self {
            messages,
            tools: None,
            add_generation_prompt: true,
            kwargs: serde_json::Map::new(),
        }
    }
}

/// A rendered conversation that still knows which parts of it are not the template's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    untrusted: Vec<Range<usize>>,
}

impl Rendered {
    /// The prompt.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Byte ranges of `text` that hold token texts which came from the request: no added token may overlap them. An
    /// empty range is a place that none may span.
    pub fn untrusted(&self) -> &[Range<usize>] {
        &self.untrusted
    }

    /// Cuts the prompt after the last place where `message` stands in it, blanks around it left out if the template has
    /// dropped them, so that the model goes on with this message; as `continue_final_message` of transformers
    /// (`utils/chat_template_utils.py`, `render_jinja_template`). False, and nothing is changed, if it stands nowhere.
    pub fn cut_after(&mut self, message: &str) -> bool {
        let bare = message.trim();
        let Some(at) = self.text.rfind(bare) else {
            return false;
        };
        let kept = message.trim_start();
        let end = match self.text[at..].starts_with(kept) {
            true => at + kept.len(),
            false => at + bare.len(),
        };
        self.text.truncate(end);
        self.untrusted.retain(|range| range.start < end);
        for range in &mut self.untrusted {
            range.end = range.end.min(end);
        }
        true
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    special_tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`] with the line.
    pub fn new(source: &str) -> Result<Self, TextError> {
        let source = prepare::source(source);
        let mut env = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        let syntax = syntax.build().map_err(|error| syntax_error(&error))?;
        env.set_syntax(syntax);
        env.set_fuel(Some(MAX_TEMPLATE_FUEL));
        env.set_formatter(python::formatter);
        env.set_unknown_method_callback(methods::call);
        env.add_filter("tojson", json::tojson);
        env.add_filter("format", format::filter);
        env.add_filter("trim", methods::trim);
        env.add_filter("string", python::string);
        env.add_test("iterable", python::is_iterable);
        env.add_test("sequence", python::is_sequence);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", strftime_now);
        env.add_template_owned(NAME, source.clone())
            .map_err(|error| syntax_error(&error))?;
        Ok(Self {
            env,
            source,
            special_tokens: Vec::new(),
        })
    }

    /// Sets variables such as `bos_token` that the template may print: (name, text).
    #[must_use]
    pub fn with_special_tokens(mut self, special_tokens: Vec<(String, String)>) -> Self {
        self.special_tokens = special_tokens;
        self
    }

    /// Renders a conversation. `added` are the tokens that contents must not be able to forge:
    /// [`Tokenizer::added_tokens`](crate::Tokenizer::added_tokens).
    ///
    /// # Errors
    /// Malformed messages or tool-call arguments, a template that fails or refuses ([`TextError::TemplateRaised`]),
    /// and [`TextError::Untraceable`] where the template rewrites contents that hold token texts.
    pub fn render(
        &self,
        request: &ChatRequest,
        added: &AddedTokens,
    ) -> Result<Rendered, TextError> {
        let messages = prepare::messages(&request.messages, self.source.contains("developer"))?;
        let inputs = Inputs {
            request,
            messages: &messages,
            now: unix_now(),
        };
        let text = self.run(&inputs, &mut str::to_owned)?;

        let mut marker = Marker::new(added, |visit| {
            visit(&self.source);
            inputs.visit_strings(visit);
        });
        let context = self.context(&inputs, &mut |text| marker.mark(text));
        if marker.found.is_empty() {
            return Ok(Rendered {
                text,
                untrusted: Vec::new(),
            });
        }
        let untraceable = || TextError::Untraceable {
            tokens: marker.found.join(" "),
        };
        // The template may also fail on marked contents only, for instance when it raises on what it takes for unknown.
        let marked = Marked::parse(&self.run_in(context).map_err(|_| untraceable())?);
        if marker.restore(marked.plain) != text {
            return Err(untraceable());
        }
        Ok(Rendered {
            text,
            untrusted: marked.ranges,
        })
    }

    fn run(
        &self,
        inputs: &Inputs<'_>,
        string: &mut dyn FnMut(&str) -> String,
    ) -> Result<String, TextError> {
        self.run_in(self.context(inputs, string))
    }

    fn run_in(&self, context: Value) -> Result<String, TextError> {
        let render = || {
            self.env
                .get_template(NAME)
                .and_then(|template| template.render(context))
                .map_err(|error| render_error(&error))
        };
        let no_stack = |reason: String| TextError::TemplateFailed { line: 0, reason };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("glim-template".to_owned())
                .stack_size(STACK_BYTES);
            let running = thread.spawn_scoped(scope, render).map_err(|error| {
                no_stack(format!(
                    "no room for a stack of {STACK_BYTES} bytes: {error}"
                ))
            })?;
            // A panic is a bug, of ours or of the engine: it goes on.
            running
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The template's variables, each string of the request passed through `string`.
    fn context(&self, inputs: &Inputs<'_>, string: &mut dyn FnMut(&str) -> String) -> Value {
        let mut variables: Vec<(String, Value)> = self
            .special_tokens
            .iter()
            .map(|(name, text)| (name.clone(), Value::from(text.as_str())))
            .collect();
        // Before all others, so that a request cannot replace them: the last of a name counts.
        for (name, value) in &inputs.request.kwargs {
            variables.push((name.clone(), python::from_json(value, string)));
        }
        variables.push((NOW.to_owned(), Value::from(inputs.now)));
        variables.push(("messages".to_owned(), python::list(inputs.messages, string)));
        let tools = inputs
            .request
            .tools
            .as_deref()
            .map_or(Value::from(()), |tools| python::list(tools, string));
        variables.push(("tools".to_owned(), tools));
        variables.push(("documents".to_owned(), Value::from(())));
        variables.push((
            "add_generation_prompt".to_owned(),
            Value::from(inputs.request.add_generation_prompt),
        ));
        Value::from_pairs(variables)
    }
}

/// What one rendering sees.
struct Inputs<'a> {
    request: &'a ChatRequest,
    messages: &'a [Json],
    now: u64,
}

impl Inputs<'_> {
    fn visit_strings(&self, visit: &mut dyn FnMut(&str)) {
        let tools = self.request.tools.iter().flatten();
        for value in self
            .messages
            .iter()
            .chain(tools)
            .chain(self.request.kwargs.values())
        {
            python::visit_strings(value, visit);
        }
    }
}

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

/// Carries the words of `raise_exception` through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Pays for work on so many bytes, and for a step of it.
fn pay(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(STEP_FUEL + (bytes / FUEL_BYTES) as u64)
}

fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    let message = python::to_str(state, message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let now = state
        .lookup(NOW)
        .and_then(|now| u64::try_from(now).ok())
        .unwrap_or(0);
    strftime::utc(format, now).map_err(|directive| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now does not know `%{directive}`"),
        )
    })
}

fn syntax_error(error: &Error) -> TextError {
    TextError::TemplateSyntax {
        line: error.line().unwrap_or(0),
        reason: reason(error),
    }
}

fn render_error(error: &Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return TextError::TemplateRaised {
                message: message.clone(),
            };
        }
        source = cause.source();
    }
    TextError::TemplateFailed {
        line: error.line().unwrap_or(0),
        reason: reason(error),
    }
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
