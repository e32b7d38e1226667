//! `glim config`: what `glim serve` would run with, and where each value comes from.

use clap::Args;
use serde_json::json;

use super::serve::ServeArgs;
use crate::exit::{Exit, Failure};
use crate::settings::{Origin, Setting};
use crate::ui::Ui;

/// Options of `glim config`: those of `glim serve`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    serve: ServeArgs,
}

pub(crate) fn run(args: &ConfigArgs, settings: &[Setting], ui: &Ui) -> Result<Exit, Failure> {
    // Whatever `serve` would refuse before it opens the model is refused here too.
    args.serve.check()?;
    match ui.json {
        true => ui.print_json(&json!({ "settings": settings }))?,
        false => ui.print(&table(settings))?,
    }
    Ok(Exit::Ok)
}

fn table(settings: &[Setting]) -> String {
    let rows = settings.iter().map(|setting| {
        let value = match setting.values.as_slice() {
            [] => "-".to_owned(),
            [empty] if empty.is_empty() => "\"\"".to_owned(),
            values => values.join(", "),
        };
        let from = match &setting.origin {
            Origin::Flag(name) | Origin::Environment(name) | Origin::File(name) => name.as_str(),
            Origin::Default => "default",
        };
        (setting.key.as_str(), value, from)
    });
    let rows: Vec<_> = rows.collect();
    let width = |of: fn(&(&str, String, &str)) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let key = width(|row| row.0.chars().count());
    let value = width(|row| row.1.chars().count());
    rows.iter()
        .map(|row| format!("{:key$}  {:value$}  {}\n", row.0, row.1, row.2))
        .collect()
}
