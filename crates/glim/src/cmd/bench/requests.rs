//! `glim bench --concurrency`: requests beside each other, as a service has them.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use glim_engine::EngineOptions;
use glim_engine::bench::{Arrival, Concurrent, arrival, concurrent};
use glim_model::Checkpoint;
use serde_json::{Value as Json, json};

use crate::exit::Failure;
use crate::loader;
use crate::placement::Setup;
use crate::ui::Ui;

/// Most requests at a time.
const MAX_CONCURRENCY: u64 = 128;
/// Requests of an arrival: one decodes, one is long, one is short.
const ARRIVAL: usize = 3;

/// Options of the measurement.
#[derive(Debug, Args)]
pub(super) struct Requests {
    /// Measure requests at a time instead of steps, and what a short one waits behind a long prompt
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = RangedU64ValueParser::<usize>::new().range(1..=MAX_CONCURRENCY), help_heading = "Requests")]
    concurrency: Vec<usize>,
    /// Tokens of each request's prompt
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(1..), help_heading = "Requests")]
    request_prompt: usize,
    /// Tokens of each request's answer
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..), help_heading = "Requests")]
    request_answer: usize,
    /// Tokens of the long prompt
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096), help_heading = "Requests")]
    long_prompt: usize,
    /// Tokens of a prefill step at most, beside one that takes the long prompt whole
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096), help_heading = "Requests")]
    chunk: usize,
}

impl Requests {
    /// Whether they are to be measured.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.concurrency.is_empty()
    }

    pub(super) fn run(
        &self,
        checkpoint: &Checkpoint,
        setup: Setup,
        ui: &Ui,
    ) -> Result<(), Failure> {
        let own = self.request_prompt.saturating_add(self.request_answer);
        // What decodes beside the long prompt has a token in every tick.
        let beside = self.long_prompt.saturating_add(64);
        let most = self.concurrency.iter().copied().max().unwrap_or(1);
        let options = EngineOptions {
            context: Some(own.max(beside)),
            max_chunk: self.long_prompt.max(self.chunk),
            max_num_seqs: most.max(ARRIVAL),
            ..EngineOptions::default()
        };
        let mut engine = loader::engine_with(checkpoint, setup, options, ui, &|_| ())?;
        // The first steps find caches and pages cold.
        concurrent(&mut engine, 1, self.request_prompt, 2)?;
        let mut runs = Vec::new();
        for n in &self.concurrency {
            runs.push(concurrent(
                &mut engine,
                *n,
                self.request_prompt,
                self.request_answer,
            )?);
        }
        let mut arrivals = Vec::new();
        for chunk in [self.chunk, self.long_prompt.max(self.chunk)] {
            arrivals.push(arrival(&mut engine, chunk, self.long_prompt)?);
        }
        report(&engine.caps().name, &runs, &arrivals, ui)
    }
}

fn report(device: &str, runs: &[Concurrent], arrivals: &[Arrival], ui: &Ui) -> Result<(), Failure> {
    if ui.json {
        return ui.print_json(&json!({
            "device": device,
            "concurrency": runs.iter().map(run_json).collect::<Vec<_>>(),
            "arrival": arrivals.iter().map(arrival_json).collect::<Vec<_>>(),
        }));
    }
    let mut text = format!("device          {device}\n\n");
    text += "requests  prompt  answer   total ms     tok/s  decode tok/s\n";
    for run in runs {
        text += &format!(
            "{:>8} {:>7} {:>7} {:>10.1} {:>9.1} {:>13.1}\n",
            run.requests,
            run.prompt,
            run.answer,
            run.total.as_secs_f64() * 1e3,
            run.tok_s(),
            run.decode_tok_s()
        );
    }
    text += "\na short request behind a long prompt, beside one that decodes\n";
    text += "   chunk    long   short  short ttft ms  long ttft ms  longest gap ms\n";
    for arrival in arrivals {
        text += &format!(
            "{:>8} {:>7} {:>7} {:>14.1} {:>13.1} {:>15.1}\n",
            arrival.chunk,
            arrival.long,
            arrival.short,
            arrival.short_ttft.as_secs_f64() * 1e3,
            arrival.long_ttft.as_secs_f64() * 1e3,
            arrival.longest_gap.as_secs_f64() * 1e3
        );
    }
    ui.print(&text)
}

fn run_json(run: &Concurrent) -> Json {
    json!({
        "requests": run.requests,
        "prompt": run.prompt,
        "answer": run.answer,
        "total_ms": run.total.as_secs_f64() * 1e3,
        "tok_s": run.tok_s(),
        "decode_tok_s": run.decode_tok_s(),
    })
}

fn arrival_json(arrival: &Arrival) -> Json {
    json!({
        "chunk": arrival.chunk,
        "long": arrival.long,
        "short": arrival.short,
        "short_ttft_ms": arrival.short_ttft.as_secs_f64() * 1e3,
        "long_ttft_ms": arrival.long_ttft.as_secs_f64() * 1e3,
        "longest_gap_ms": arrival.longest_gap.as_secs_f64() * 1e3,
    })
}
