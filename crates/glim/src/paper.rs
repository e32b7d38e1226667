//! A rank of a real model without its file: shape, types and rank from the command line, weights at random.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use glim_engine::{Engine, EngineError, EngineOptions};
use glim_model::shard::{Latents, MAX_WORLD_SIZE, Options};
use glim_model::synth::{Changes, Classes, Shape};
use glim_model::{Config, Inventory};
use glim_plan::GgmlType;

use crate::exit::Failure;
use crate::loader;
use crate::placement::{LatentsChoice, Lone, Math, Placement, Setup};
use crate::ui::Ui;

/// Options of commands that measure.
#[derive(Debug, Args)]
#[command(next_help_heading = "A shape in place of MODEL")]
pub(crate) struct PaperArgs {
    /// Measure a model of this shape, with random weights
    #[arg(long, conflicts_with = "path", value_parser = shapes())]
    shape: Option<Shape>,
    /// One rank by itself, such as 0/8: the first of eight
    #[arg(
        long,
        value_name = "RANK/RANKS",
        requires = "shape",
        default_value = "0/1"
    )]
    rank: RankOf,
    /// Only the first trunk layers [default: all]
    #[arg(long, value_name = "N", requires = "shape")]
    layers: Option<usize>,
    /// Routed experts in a layer [default: as the shape has]
    #[arg(long = "n-experts", value_name = "N", requires = "shape")]
    n_experts: Option<usize>,
    /// Type of all matrices that are neither experts nor router
    #[arg(long, value_name = "TYPE", requires = "shape", default_value = "q8_0", value_parser = ggml_type)]
    dense: GgmlType,
    /// Type of routed experts
    #[arg(long, value_name = "TYPE", requires = "shape", default_value = "q4_k", value_parser = ggml_type)]
    experts: GgmlType,
    /// Type of the router
    #[arg(long, value_name = "TYPE", requires = "shape", default_value = "f32", value_parser = ggml_type)]
    router: GgmlType,
    /// Microseconds that a collective takes, or none
    #[arg(
        long,
        value_name = "MICROSECONDS",
        requires = "shape",
        default_value = "none"
    )]
    collective: Latency,
}

/// `0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RankOf {
    rank: usize,
    world_size: usize,
}

impl FromStr for RankOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (rank, world_size) = text.split_once('/')?;
            let own = Self {
                rank: rank.parse().ok()?,
                world_size: world_size.parse().ok()?,
            };
            (own.rank < own.world_size && own.world_size <= MAX_WORLD_SIZE).then_some(own)
        };
        parse().ok_or_else(|| format!("expected such as 0/8, of at most {MAX_WORLD_SIZE} ranks"))
    }
}

impl std::fmt::Display for RankOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.rank, self.world_size)
    }
}

/// What a collective takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Latency(Option<Duration>);

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let micros: Option<f64> = text.parse().ok();
        let micros = micros.filter(|us| (0.0..=1e6).contains(us));
        let micros = micros.ok_or("expected microseconds, 0 to 1000000, or none")?;
        Ok(Self(Some(Duration::from_nanos((micros * 1e3) as u64))))
    }
}

fn shapes() -> impl TypedValueParser<Value = Shape> {
    // GLM-4.7-Flash is a shape that no plan is made of.
    let runs = |shape: &&Shape| **shape != Shape::Glm47Flash;
    let names = Shape::ALL.iter().filter(runs).map(|shape| shape.name());
    let named = |name: String| Shape::ALL.iter().copied().find(|s| s.name() == name);
    PossibleValuesParser::new(names).map(move |name| named(name).unwrap_or(Shape::Tiny))
}

fn ggml_type(name: &str) -> Result<GgmlType, String> {
    let found = GgmlType::from_name(name).filter(|ty| ty.can_decode());
    found.ok_or_else(|| "expected a block type such as q8_0, q4_k or f32".to_owned())
}

/// What is measured: one rank of a shape.
pub(crate) struct Paper {
    name: String,
    inventory: Inventory,
    pub(crate) setup: Setup,
}

impl PaperArgs {
    /// The rank that is asked for, if one is.
    pub(crate) fn read(&self, placement: &Placement) -> Result<Option<Paper>, Failure> {
        let Some(shape) = self.shape else {
            return Ok(None);
        };
        let config = shape.config(Changes {
            layers: self.layers,
            experts: self.n_experts,
            vocab: None,
            no_mtp: true,
        })?;
        let RankOf { rank, world_size } = self.rank;
        let lone = Lone {
            rank,
            latency: self.collective.0,
        };
        let setup = placement.lone(Math::Fast, world_size, lone)?;
        let classes = Classes {
            dense: self.dense,
            experts: self.experts,
            router: self.router,
        };
        let inventory = Inventory::on_paper(&config, |spec| classes.type_of(spec));
        let options = Options {
            latents: match setup.latents {
                LatentsChoice::Rows => Latents::Rows,
                LatentsChoice::Whole | LatentsChoice::Auto => Latents::Replicated,
            },
            ..Options::default()
        };
        let inventory = inventory
            .over(world_size, &options)
            .map_err(EngineError::from)?;
        let layers = config.n_layers;
        let types = format!(
            "{} dense, {} experts, {} router",
            self.dense, self.experts, self.router
        );
        Ok(Some(Paper {
            name: format!(
                "{} on paper, rank {}, {layers} layers, {types}",
                shape.name(),
                self.rank
            ),
            inventory,
            setup,
        }))
    }
}

impl Paper {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn config(&self) -> &Config {
        self.inventory.config()
    }

    pub(crate) fn engine(self, options: EngineOptions, ui: &Ui) -> Result<Engine, Failure> {
        loader::lone_rank(self.name, self.inventory, self.setup, options, ui)
    }
}

/// What is measured: a model, or a rank of one on paper.
pub(crate) enum Subject {
    Model(glim_model::Checkpoint, String, Setup),
    Paper(Paper),
}

impl Subject {
    pub(crate) fn read(
        model: &loader::ModelArg,
        paper: &PaperArgs,
        placement: &Placement,
    ) -> Result<Self, Failure> {
        if let Some(paper) = paper.read(placement)? {
            return Ok(Self::Paper(paper));
        }
        let setup = placement.setup(Math::Fast)?;
        Ok(Self::Model(model.checkpoint()?, model.name(), setup))
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Model(_, name, _) => name.clone(),
            Self::Paper(paper) => paper.name().to_owned(),
        }
    }

    pub(crate) fn max_context(&self) -> usize {
        match self {
            Self::Model(checkpoint, ..) => checkpoint.config().max_context,
            Self::Paper(paper) => paper.config().max_context,
        }
    }

    pub(crate) fn setup(&self) -> &Setup {
        match self {
            Self::Model(_, _, setup) => setup,
            Self::Paper(paper) => &paper.setup,
        }
    }

    pub(crate) fn engine(self, options: EngineOptions, ui: &Ui) -> Result<Engine, Failure> {
        match self {
            Self::Model(checkpoint, _, setup) => {
                loader::engine_with(&checkpoint, setup, options, ui, &|_| ())
            }
            Self::Paper(paper) => paper.engine(options, ui),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_latencies_are_written_as_the_manual_says() {
        let rank = |rank, world_size| Ok(RankOf { rank, world_size });
        assert_eq!("7/8".parse(), rank(7, 8));
        for wrong in ["8/8", "0/0", "8", "a/8", "0/1000", "-1/2", ""] {
            assert!(wrong.parse::<RankOf>().is_err(), "{wrong}");
        }
        assert_eq!("none".parse(), Ok(Latency(None)));
        assert_eq!("2.5".parse(), Ok(Latency(Some(Duration::from_nanos(2500)))));
        for wrong in ["-1", "x", "", "nan", "1e9"] {
            assert!(wrong.parse::<Latency>().is_err(), "{wrong}");
        }
    }
}
