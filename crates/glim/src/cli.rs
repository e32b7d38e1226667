//! The command line as a whole: global options and the list of subcommands.

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand};

use crate::cmd;
use crate::exit::{Exit, Failure, table};
use crate::settings::Setting;
use crate::ui::{ColorChoice, Ui};
use crate::version;

const ABOUT: &str =
    "Runs GLM-5-class models (MLA, sparse attention, mixture of experts) from GGUF files";

const MODEL_HELP: &str = "\
MODEL is a .gguf file (any part of a split set), a folder with one such model, or a Hugging Face
checkpoint folder. Without MODEL a small trained model that is built into glim runs.";

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

/// Everything after `glim`.
#[derive(Debug, Parser)]
#[command(
    name = "glim", version = version::VERSION, long_version = version::long(), about = ABOUT, styles = STYLES, max_term_width = 100, disable_help_subcommand = true,
    after_help = format!("{MODEL_HELP}\n\nExit codes:{}", table()),
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every subcommand.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Print one JSON object on stdout; everything else goes to stderr
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Tell more on stderr: what is loaded, and timings
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) verbose: bool,
    /// Colours on stdout
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Global options"
    )]
    pub(crate) color: ColorChoice,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate from a prompt, or chat in the terminal
    Run(cmd::run::RunArgs),
    /// Serve a model over HTTP: the OpenAI API, Anthropic's Messages, metrics, a page to chat
    #[command(after_help = cmd::serve::EXAMPLES)]
    Serve(cmd::serve::ServeArgs),
    /// Install serve as a systemd service, show it, or remove it
    #[command(subcommand)]
    Service(cmd::service::ServiceCommand),
    /// Show the options that serve would run with, and where each comes from
    Config(cmd::config::ConfigArgs),
    /// Show what a model file is: hyper-parameters, tensors, memory, oddities, plans
    Inspect(cmd::inspect::InspectArgs),
    /// Show the rendered prompt and the token ids of a text or a conversation
    Tokenize(cmd::tokenize::TokenizeArgs),
    /// Measure a model: perplexity of a text, or distance to a reference
    Eval(cmd::eval::EvalArgs),
    /// Prove that a model is what it says, and that what runs is the model
    Verify(cmd::verify::VerifyArgs),
    /// Write a Hugging Face checkpoint as a GGUF file, or a GGUF model as a Hugging Face folder
    Convert(cmd::convert::ConvertArgs),
    /// Write a GGUF file with other types
    Quantize(cmd::quantize::QuantizeArgs),
    /// Sum up what a model's weights are multiplied with, for quantize --imatrix
    Imatrix(cmd::imatrix::ImatrixArgs),
    /// Write a model of a real shape with random weights, or with none
    Synth(cmd::synth::SynthArgs),
    /// Measure how fast a model's steps are, beside what this machine can do at most
    Bench(cmd::bench::BenchArgs),
    /// Show where the time of a step goes, operation by operation
    Explain(cmd::explain::ExplainArgs),
    /// Say what is wrong with this machine, and what to change: GPUs, bus, limits, who holds memory
    Doctor(cmd::doctor::DoctorArgs),
    /// Print a script that completes command lines of glim in a shell
    Completions(cmd::completions::CompletionsArgs),
    /// Write the manual pages
    Man(cmd::man::ManArgs),
    // One probe of `doctor --probe`, in a process of its own.
    #[command(name = cmd::doctor::PROBE_COMMAND, hide = true)]
    DoctorProbe(cmd::doctor::ProbeArgs),
}

impl Command {
    pub(crate) fn run(self, settings: &[Setting], ui: &Ui) -> Result<Exit, Failure> {
        match self {
            Command::Run(args) => cmd::run::run(args, ui),
            Command::Serve(args) => cmd::serve::run(args, ui),
            Command::Service(command) => cmd::service::run(command, ui),
            Command::Config(args) => cmd::config::run(&args, settings, ui),
            Command::Inspect(args) => cmd::inspect::run(&args, ui),
            Command::Tokenize(args) => cmd::tokenize::run(&args, ui),
            Command::Eval(args) => cmd::eval::run(&args, ui),
            Command::Verify(args) => cmd::verify::run(&args, ui),
            Command::Convert(args) => cmd::convert::run(&args, ui),
            Command::Quantize(args) => cmd::quantize::run(&args, ui),
            Command::Imatrix(args) => cmd::imatrix::run(&args, ui),
            Command::Synth(args) => cmd::synth::run(&args, ui),
            Command::Bench(args) => cmd::bench::run(&args, ui),
            Command::Explain(args) => cmd::explain::run(&args, ui),
            Command::Doctor(args) => cmd::doctor::run(&args, ui),
            Command::Completions(args) => cmd::completions::run(&args, ui),
            Command::Man(args) => cmd::man::run(&args, ui),
            Command::DoctorProbe(args) => cmd::doctor::run_probe(&args, ui),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_has_no_contradictions() {
        super::Cli::command().debug_assert();
    }
}
