//! The proof of what a model computes: sound models pass it, and each fault is seen by the check that should see it.
//!
//! Function holds the backend against the file, so it sees whatever differs between the two: a kernel, or weights that changed on their way
//! into memory. A fault of the file itself is in both; then only sense is left (and other levels, or a reference). Both are
//! shown here for the same faults.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use glim_cpu::{CpuBackend, CpuOptions, Math, RankGroup};
use glim_engine::proof::{self, Arithmetic, Check, Outcome, Probe};
use glim_engine::{Engine, EngineOptions, EnginePlan, Rank};
use glim_model::shard::{Latents, Options};
use glim_model::{Checkpoint, Inventory};
use glim_plan::fuse::{ADD_RMS_NORM, EXPERTS_ADD, FusePattern, NORMS, ROPES, SWIGLU_LINEAR};
use glim_plan::{
    Backend, BackendError, Caps, Op, Plan, ReadTarget, RopeStyle, StateDecl, StepId, StepInputs,
    StepResults, WeightGroup, WeightSource,
};
use glim_testkit::assets;
use glim_testkit::faults::GgufFile;
use glim_text::{TextModel, TokenId};

/// Context of the engines: beyond what the models' indexers keep, and enough for the texts.
const CONTEXT: usize = 2048;
/// Layers of tiny-glm5.
const LAYERS: usize = 6;

fn cpu(math: Math) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuOptions {
        math,
        threads: Some(2),
        ..CpuOptions::default()
    }))
}

fn engine(
    checkpoint: &Checkpoint,
    weights: &dyn WeightSource,
    backend: Box<dyn Backend>,
) -> Engine {
    let options = EngineOptions {
        context: Some(CONTEXT),
        ..EngineOptions::default()
    };
    Engine::new(Inventory::of(checkpoint), weights, backend, options).unwrap()
}

fn text_of(checkpoint: &Checkpoint) -> TextModel {
    match checkpoint.source() {
        glim_model::checkpoint::Source::Gguf(gguf) => TextModel::from_gguf(gguf).unwrap(),
        glim_model::checkpoint::Source::Hf(folder) => TextModel::from_hf(folder.path()).unwrap(),
    }
}

/// A text that is none of the proof's own.
fn ids(text: &TextModel) -> Vec<TokenId> {
    let held_out = std::fs::read_to_string(assets::heldout_text()).unwrap();
    let excerpt: String = held_out.chars().skip(9000).take(3000).collect();
    let encoded = text.tokenizer.encode(&excerpt, glim_text::Special::Text);
    encoded.unwrap()
}

fn probe<'a>(arithmetic: Arithmetic, ids: &'a [TokenId]) -> Probe<'a> {
    Probe {
        arithmetic,
        threads: 2,
        ids,
    }
}

/// Function and end to end of an engine, against the weights of `file`.
fn function(engine: &mut Engine, file: &dyn WeightSource, probe: &Probe<'_>) -> Vec<Check> {
    let mut checks = proof::function(engine, &[file], probe, &mut |_, _| {});
    checks.push(proof::whole(engine, file, probe, &mut |_, _| {}));
    say(&checks);
    checks
}

fn say(checks: &[Check]) {
    for c in checks {
        println!(
            "{} {} {:?}: {}; {}",
            c.level, c.name, c.outcome, c.covered, c.detail
        );
    }
}

fn outcomes(checks: &[Check]) -> Vec<(&str, Outcome)> {
    checks
        .iter()
        .map(|c| (c.name.as_str(), c.outcome))
        .collect()
}

const SOUND: [(&str, Outcome); 3] = [
    ("prefill", Outcome::Passed),
    ("decode", Outcome::Passed),
    ("end to end", Outcome::Passed),
];

#[test]
fn exact_arithmetic_is_the_recomputation_bit_for_bit() {
    for path in [assets::tiny_glm5(), assets::odd_glm52()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let ids = ids(&text_of(&checkpoint));
        let mut engine = engine(&checkpoint, &checkpoint, cpu(Math::Exact));
        let checks = function(&mut engine, &checkpoint, &probe(Arithmetic::Exact, &ids));
        assert_eq!(outcomes(&checks), SOUND);
        for check in &checks[..2] {
            assert!(check.detail.contains("bit for bit"), "{}", check.detail);
        }
    }
}

/// Each rank's steps from its own slices, and what they bring together from what each of them brought.
#[test]
fn ranks_are_proved_each_by_itself() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let ids = ids(&text_of(&checkpoint));
    let options = Options {
        latents: Latents::Rows,
        ..Options::default()
    };
    let inventory = Inventory::of(&checkpoint).over(2, &options).unwrap();
    let shards = inventory.shards().unwrap();
    let sources = [0, 1].map(|rank| shards.rank(&checkpoint, rank).unwrap());
    let run = |arithmetic, math| {
        let group = RankGroup::new(2, Duration::from_secs(120));
        let rank = |rank: usize| Rank {
            backend: Box::new(CpuBackend::new(CpuOptions {
                math,
                threads: Some(1),
                ranks: Some(group.rank(rank)),
                ..CpuOptions::default()
            })),
            weights: &sources[rank],
        };
        let ranks = vec![rank(0), rank(1)];
        let options = EngineOptions {
            context: Some(CONTEXT),
            ..EngineOptions::default()
        };
        let plan = EnginePlan::new(inventory.clone(), &ranks[0].backend.caps(), options).unwrap();
        let mut engine =
            Engine::load_ranks(plan, ranks, Some(std::sync::Arc::new(group.clone()))).unwrap();
        let probe = probe(arithmetic, &ids);
        let sources: Vec<&dyn WeightSource> =
            sources.iter().map(|s| s as &dyn WeightSource).collect();
        let mut checks = proof::function(&mut engine, &sources, &probe, &mut |_, _| {});
        checks.push(proof::whole(
            &mut engine,
            &checkpoint,
            &probe,
            &mut |_, _| {},
        ));
        say(&checks);
        checks
    };
    let exact = run(Arithmetic::Exact, Math::Exact);
    let names: Vec<&str> = exact.iter().map(|check| check.name.as_str()).collect();
    let expected = [
        "prefill, rank 0 of 2",
        "decode, rank 0 of 2",
        "prefill, rank 1 of 2",
        "decode, rank 1 of 2",
        "end to end",
    ];
    assert_eq!(names, expected);
    for check in &exact {
        assert_eq!(check.outcome, Outcome::Passed, "{}", check.detail);
    }
    assert!(
        exact[..4]
            .iter()
            .all(|check| check.detail.contains("bit for bit"))
    );
    for check in run(Arithmetic::EightBit, Math::Fast) {
        assert_eq!(check.outcome, Outcome::Passed, "{}", check.detail);
    }
}

#[test]
fn fast_arithmetic_lies_within_its_bounds_and_uses_them() {
    for path in [assets::tiny_glm5(), assets::odd_glm52()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let ids = ids(&text_of(&checkpoint));
        let mut engine = engine(&checkpoint, &checkpoint, cpu(Math::Fast));
        let checks = function(&mut engine, &checkpoint, &probe(Arithmetic::EightBit, &ids));
        assert_eq!(outcomes(&checks), SOUND);
        for check in &checks[..2] {
            assert!(check.detail.contains("% of its bound"), "{}", check.detail);
            assert!(check.bytes > 1 << 20);
        }
    }
}

/// A bound that nothing can leave shows nothing: 8-bit activations are far outside the bounds of f32.
#[test]
fn fast_arithmetic_leaves_the_bounds_of_exact_arithmetic() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let ids = ids(&text_of(&checkpoint));
    let mut engine = engine(&checkpoint, &checkpoint, cpu(Math::Fast));
    let checks = function(&mut engine, &checkpoint, &probe(Arithmetic::Exact, &ids));
    assert_eq!(checks[0].outcome, Outcome::Failed);
    assert!(
        checks[0]
            .detail
            .starts_with("blk.0.attn_q_a+attn_kv_a_mqa+indexer.attn_k (Linear)"),
        "{}",
        checks[0].detail
    );
}

// --- weights that changed in memory ---

/// A backend of whose weights one has a byte flipped, in its memory: the first of the second half.
struct Flipped {
    inner: Box<dyn Backend>,
    weight: &'static str,
}

/// What it loads from.
struct FlippedSource<'a> {
    source: &'a dyn WeightSource,
    weight: &'static str,
}

impl WeightSource for FlippedSource<'_> {
    fn weight(&self, name: &str) -> Result<glim_plan::WeightData<'_>, BackendError> {
        let mut data = self.source.weight(name)?;
        if name == self.weight {
            let bytes = data.bytes.to_mut();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        Ok(data)
    }
}

impl Backend for Flipped {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn load(
        &mut self,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        let weight = self.weight;
        self.inner.load(groups, &FlippedSource { source, weight })
    }

    fn alloc_state(
        &mut self,
        decls: &[StateDecl],
        block_size: usize,
        blocks: usize,
        sequence_slots: usize,
    ) -> Result<(), BackendError> {
        self.inner
            .alloc_state(decls, block_size, blocks, sequence_slots)
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        self.inner.prepare(plan)
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        self.inner.run(step, inputs)
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        self.inner.read(target)
    }
}

#[test]
fn residence_names_the_weight_of_which_one_byte_changed() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let check = |backend| {
        let mut engine = engine(&checkpoint, &checkpoint, backend);
        let (mut last, mut all) = (0, 0);
        let mut checks = proof::residence(&mut engine, &[&checkpoint], &mut |done, of| {
            assert!(done > last && done <= of, "{done} of {of}");
            (last, all) = (done, of);
        });
        assert_eq!((checks.len(), last), (1, all));
        say(&checks);
        let check = checks.remove(0);
        assert_eq!(check.bytes, all);
        check
    };
    let sound = check(cpu(Math::Fast));
    assert_eq!(
        (sound.outcome, sound.name.as_str()),
        (Outcome::Passed, "resident")
    );
    // The whole trunk: the MTP block is not loaded.
    let trunk = checkpoint.tensors().iter().map(|t| t.byte_len() as u64);
    assert_eq!(sound.bytes, trunk.sum::<u64>());

    // An expert's weight: of the rows of a step few or none may choose it.
    let weight = "blk.2.ffn_up_exps.weight";
    let flipped = check(Box::new(Flipped {
        inner: cpu(Math::Fast),
        weight,
    }));
    assert_eq!(flipped.outcome, Outcome::Failed);
    assert!(flipped.detail.contains("1 of "), "{}", flipped.detail);
    let bad = flipped.first_bad.unwrap();
    // The fifth of eight experts of 256 rows begins in the middle.
    assert_eq!(
        (bad.tensor.as_str(), bad.row, bad.col),
        (weight, 4 * 256, 0)
    );
    assert_ne!(bad.expected, bad.found);
}

// --- an operation made wrong ---

type Bend = fn(&mut Op);

/// A backend that computes one operation wrongly.
struct Bent {
    inner: Box<dyn Backend>,
    label: &'static str,
    bend: Bend,
    /// Instead of the backend's own: what has no kernel runs part by part.
    patterns: Option<Vec<FusePattern>>,
}

impl Backend for Bent {
    fn caps(&self) -> Caps {
        let caps = self.inner.caps();
        let own = || caps.patterns.clone();
        Caps {
            patterns: self.patterns.clone().unwrap_or_else(own),
            ..caps
        }
    }

    fn load(
        &mut self,
        groups: &[WeightGroup],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        self.inner.load(groups, source)
    }

    fn alloc_state(
        &mut self,
        decls: &[StateDecl],
        block_size: usize,
        blocks: usize,
        sequence_slots: usize,
    ) -> Result<(), BackendError> {
        self.inner
            .alloc_state(decls, block_size, blocks, sequence_slots)
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        let mut plan = plan.clone();
        for node in &mut plan.ops {
            // A fused operation's label is made of its parts'.
            let part = node.label.split(" + ").position(|of| of == self.label);
            match &mut node.op {
                Op::Fused { parts, .. } if node.label == self.label => {
                    parts.iter_mut().for_each(self.bend)
                }
                Op::Fused { parts, .. } => {
                    if let Some(part) = part {
                        (self.bend)(&mut parts[part]);
                    }
                }
                op if part.is_some() => (self.bend)(op),
                _ => {}
            }
        }
        self.inner.prepare(&plan)
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        self.inner.run(step, inputs)
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        self.inner.read(target)
    }
}

/// An operation of each kind that odd-glm52 has, what is done to it, and the buffer in which it must show. Embedding and the draw of a
/// token have nothing to bend.
const BENT: [(&str, &str, &str, Bend); 18] = [
    (
        "blk.0.attn_q_a_norm",
        "RmsNorm",
        "blk.0.attn_q_a_norm.out",
        |op| {
            if let Op::RmsNorm { eps, .. } = op {
                *eps = 0.01;
            }
        },
    ),
    (
        "blk.3.indexer.k_norm",
        "LayerNorm",
        "blk.3.indexer.k_norm.out",
        |op| {
            if let Op::LayerNorm { eps, .. } = op {
                *eps = 0.01;
            }
        },
    ),
    // Both read and written by several operations, before and after the update in place.
    ("blk.2.attn_q_rope", "Rope", "blk.2.attn_q_b.out", |op| {
        if let Op::Rope { spec, .. } = op {
            spec.style = RopeStyle::HalfSplit;
        }
    }),
    (
        "blk.2.attn_k_rope",
        "Rope",
        "blk.2.attn_kv_a_mqa.out",
        |op| {
            if let Op::Rope { spec, .. } = op {
                spec.start = 0;
            }
        },
    ),
    (
        "blk.3.indexer.q_rope",
        "Rope",
        "blk.3.indexer.attn_q_b.out",
        |op| {
            if let Op::Rope { spec, .. } = op {
                spec.theta *= 1.01;
            }
        },
    ),
    ("blk.1.attn_cache", "CacheAppend", "latent.1", |op| {
        if let Op::CacheAppend { parts, .. } = op {
            parts[1].start -= 1;
        }
    }),
    ("blk.1.indexer.cache", "CacheAppend", "index_key.1", |op| {
        if let Op::CacheAppend { parts, .. } = op {
            let half = parts[0].len / 2;
            let second = glim_plan::Cols {
                start: half,
                len: half,
                ..parts[0]
            };
            parts[0].len = half;
            parts.insert(0, second);
        }
    }),
    (
        "blk.3.indexer.score",
        "IndexScore",
        "blk.3.indexer.scores",
        |op| {
            if let Op::IndexScore { scale, .. } = op {
                *scale *= 1.001;
            }
        },
    ),
    (
        "blk.1.attn_k_b",
        "HeadProject",
        "blk.1.attn_k_b.out",
        |op| {
            if let Op::HeadProject { x, .. } = op {
                x.start += 1;
            }
        },
    ),
    ("blk.4.attn", "MlaAttend", "blk.4.attn.out", |op| {
        if let Op::MlaAttend { scale, .. } = op {
            *scale *= 1.01;
        }
    }),
    ("blk.2.attn", "MlaAttend", "blk.2.attn.out", |op| {
        if let Op::MlaAttend { topk, .. } = op {
            *topk = None;
        }
    }),
    (
        "blk.0.ffn_gate+ffn_up",
        "Linear",
        "blk.0.ffn_gate.out",
        |op| {
            if let Op::Linear { weights, .. } = op {
                weights.swap(0, 1);
            }
        },
    ),
    ("blk.1.ffn_swiglu", "SwiGlu", "blk.1.ffn_swiglu.out", |op| {
        if let Op::SwiGlu { gate, up, .. } = op {
            std::mem::swap(gate, up);
        }
    }),
    ("blk.3.router", "Route", "blk.3.router.weights", |op| {
        if let Op::Route { spec, .. } = op {
            spec.norm = false;
        }
    }),
    ("blk.4.router", "Route", "blk.4.router.ids", |op| {
        if let Op::Route { bias, .. } = op {
            *bias = None;
        }
    }),
    ("blk.4.experts", "ExpertFfn", "blk.4.experts.out", |op| {
        if let Op::ExpertFfn { gate, up, .. } = op {
            std::mem::swap(gate, up);
        }
    }),
    (
        "blk.2.attn_residual + blk.2.ffn_norm",
        "Add",
        "blk.2.attn_residual.out",
        |op| {
            if let Op::Add { a, b, .. } = op {
                *a = *b;
            }
        },
    ),
    (
        "blk.2.attn_residual + blk.2.ffn_norm",
        "RmsNorm",
        "blk.2.ffn_norm.out",
        |op| {
            if let Op::RmsNorm { eps, .. } = op {
                *eps = 0.01;
            }
        },
    ),
];

#[test]
fn a_wrong_operation_is_named_and_no_other() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let ids = ids(&text_of(&checkpoint));
    for (label, kind, buffer, bend) in BENT {
        let inner = cpu(Math::Fast);
        let backend = Box::new(Bent {
            inner,
            label,
            bend,
            patterns: None,
        });
        let mut engine = engine(&checkpoint, &checkpoint, backend);
        let probe = probe(Arithmetic::EightBit, &ids);
        let checks = proof::function(&mut engine, &[&checkpoint], &probe, &mut |_, _| {});
        say(&checks);
        let prefill = &checks[0];
        assert_eq!(prefill.outcome, Outcome::Failed, "{label}");
        let sentence = format!("{label} ({kind}) leaves its bound in {buffer}: ");
        assert!(
            prefill.detail.starts_with(&sentence),
            "{label}: {}",
            prefill.detail
        );
        assert!(!prefill.detail.contains("; so do"), "{}", prefill.detail);
        assert_eq!(prefill.first_bad.as_ref().unwrap().tensor, buffer);
    }
}

/// Norms, rotations and appends as one operation: from outside, what is between its parts is not seen.
#[test]
fn of_a_fused_operation_the_wrong_part_is_named() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let ids = ids(&text_of(&checkpoint));
    let untouched: (&str, &str, &str, Bend) = ("", "", "", |_| {});
    let parts = BENT.into_iter().filter(|(label, ..)| {
        let in_pattern = ["_norm", "_rope", "cache", "_shexp", "experts", "ffn_moe"].iter();
        !label.contains(" + ") && in_pattern.into_iter().any(|end| label.ends_with(end))
    });
    for (label, kind, buffer, bend) in parts.chain([untouched]) {
        let backend = Box::new(Bent {
            inner: cpu(Math::Fast),
            label,
            bend,
            patterns: Some(vec![ADD_RMS_NORM, NORMS, ROPES, SWIGLU_LINEAR, EXPERTS_ADD]),
        });
        let mut engine = engine(&checkpoint, &checkpoint, backend);
        let probe = probe(Arithmetic::EightBit, &ids);
        let checks = proof::function(&mut engine, &[&checkpoint], &probe, &mut |_, _| {});
        say(&checks);
        let prefill = &checks[0];
        if label.is_empty() {
            assert_eq!(prefill.outcome, Outcome::Passed, "{}", prefill.detail);
            continue;
        }
        assert_eq!(prefill.outcome, Outcome::Failed, "{label}");
        let (of, rest) = prefill.detail.split_once(" (").unwrap();
        assert!(of.split(" + ").any(|part| part == label), "{label}: {of}");
        let sentence = format!("{kind}) leaves its bound in {buffer}: ");
        assert!(rest.starts_with(&sentence), "{label}: {}", prefill.detail);
        assert!(!prefill.detail.contains("; so do"), "{}", prefill.detail);
    }
}

#[test]
fn a_skipped_operation_is_named_by_what_it_did_not_write() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let ids = ids(&text_of(&checkpoint));
    for label in ["blk.2.attn_v_b", "blk.3.indexer.select", "blk.0.attn_cache"] {
        let reference = glim_plan::reference::ReferenceOptions {
            poison: false,
            skip: Some(label.to_owned()),
            ..glim_plan::reference::ReferenceOptions::default()
        };
        let backend = Box::new(glim_plan::reference::ReferenceBackend::new(reference));
        let mut engine = engine(&checkpoint, &checkpoint, backend);
        let probe = probe(Arithmetic::Exact, &ids);
        let checks = proof::function(&mut engine, &[&checkpoint], &probe, &mut |_, _| {});
        say(&checks);
        assert!(
            checks.iter().all(|check| check.outcome == Outcome::Failed),
            "{label}"
        );
        assert!(checks[0].detail.contains(label), "{}", checks[0].detail);
    }
}

// --- weights made wrong ---

/// A fault of the built-in model in all layers that have the part: what it does, the operation that function names if it happens on the way
/// into memory, and whether sense sees it if it is in the file.
struct Fault {
    name: &'static str,
    make: fn(GgufFile) -> GgufFile,
    op: &'static str,
    sense: bool,
}

const FAULTS: [Fault; 7] = [
    Fault {
        name: "k and v swapped in kv_b",
        make: |file| (0..LAYERS).fold(file, GgufFile::swapped_kv),
        op: "blk.0.attn_k_b (HeadProject)",
        sense: true,
    },
    Fault {
        name: "k_b stored untransposed",
        make: |file| (0..LAYERS).fold(file, GgufFile::untransposed_k_b),
        op: "blk.0.attn_k_b (HeadProject)",
        sense: true,
    },
    Fault {
        name: "two experts exchanged",
        make: |file| (1..LAYERS).fold(file, |file, layer| file.exchanged_experts(layer, 0, 5)),
        op: "blk.1.experts (ExpertFfn)",
        sense: true,
    },
    Fault {
        name: "gate and up shards interleaved",
        make: |file| (0..LAYERS).fold(file, |file, layer| file.interleaved_gate_up(layer, 2)),
        op: "blk.0.ffn_gate+ffn_up (Linear)",
        sense: true,
    },
    // The projection that reads it is normed again, which makes good for most of it.
    Fault {
        name: "one norm shifted by one",
        make: |file| file.shifted_norm("blk.3.attn_norm.weight", 1.0),
        op: "blk.2.ffn_residual + blk.3.attn_norm (RmsNorm)",
        sense: false,
    },
    Fault {
        name: "all norms shifted by one",
        make: |file| {
            let norms: Vec<String> = file
                .tensors()
                .iter()
                .map(|tensor| tensor.name.clone())
                .filter(|name| name.ends_with("_norm.weight") && !name.contains("nextn"))
                .collect();
            norms
                .iter()
                .fold(file, |file, name| file.shifted_norm(name, 1.0))
        },
        op: "blk.0.attn_norm (RmsNorm)",
        sense: true,
    },
    Fault {
        name: "router bias dropped",
        make: |file| {
            let drop = |values: &mut Vec<f32>| values.fill(0.0);
            (1..LAYERS).fold(file, |file, layer| {
                file.change_values(&format!("blk.{layer}.exp_probs_b.bias"), drop)
            })
        },
        op: "blk.1.router (Route)",
        sense: false,
    },
];

fn opened(file: &GgufFile) -> Checkpoint {
    Checkpoint::from_gguf(file.gguf()).unwrap()
}

#[test]
fn function_names_the_operation_whose_weights_are_not_the_files() {
    let sound = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let file = GgufFile::read(&assets::tiny_glm5());
    let ids = ids(&text_of(&sound));
    for fault in FAULTS {
        let faulty = opened(&(fault.make)(file.clone()));
        let mut engine = engine(&sound, &faulty, cpu(Math::Fast));
        let probe = probe(Arithmetic::EightBit, &ids);
        let checks = proof::function(&mut engine, &[&sound], &probe, &mut |_, _| {});
        println!("{}: {}", fault.name, checks[0].detail);
        assert_eq!(checks[0].outcome, Outcome::Failed, "{}", fault.name);
        assert!(
            checks[0].detail.starts_with(fault.op),
            "{}: {}",
            fault.name,
            checks[0].detail
        );
    }
}

#[test]
fn sense_sees_what_makes_the_text_unlikely() {
    let file = GgufFile::read(&assets::tiny_glm5());
    let text = text_of(&opened(&file));
    let sense = |checkpoint: &Checkpoint| {
        let mut engine = engine(checkpoint, checkpoint, cpu(Math::Fast));
        proof::sense(&mut engine, &text.tokenizer, &mut |_, _| {})
    };
    let sound = sense(&opened(&file));
    println!("sound: {}", sound.detail);
    assert_eq!(sound.outcome, Outcome::Passed);
    for fault in FAULTS {
        let check = sense(&opened(&(fault.make)(file.clone())));
        println!("{}: {}", fault.name, check.detail);
        assert_eq!(
            check.outcome == Outcome::Failed,
            fault.sense,
            "{}",
            fault.name
        );
    }
}

/// What a file says wrongly is what the backend computes: function compares the two, and cannot see it.
#[test]
fn a_fault_of_the_file_itself_is_not_functions_to_see() {
    let faulty = opened(&GgufFile::read(&assets::tiny_glm5()).swapped_kv(2));
    let ids = ids(&text_of(&faulty));
    let mut engine = engine(&faulty, &faulty, cpu(Math::Fast));
    let checks = function(&mut engine, &faulty, &probe(Arithmetic::EightBit, &ids));
    assert_eq!(outcomes(&checks), SOUND);
}

#[test]
fn random_weights_make_no_sense_and_are_told_so() {
    let checkpoint = Checkpoint::open(&assets::odd_glm52()).unwrap();
    let text = text_of(&checkpoint);
    let mut engine = engine(&checkpoint, &checkpoint, cpu(Math::Fast));
    let check = proof::sense(&mut engine, &text.tokenizer, &mut |_, _| {});
    println!("odd-glm52: {}", check.detail);
    assert_eq!(check.outcome, Outcome::Failed);
    assert!(check.detail.contains("or the model was never trained"));
}

/// A context shorter than the indexer's choice: what can be looked at is, and the check says where.
#[test]
fn a_short_context_is_proved_as_far_as_it_goes() {
    let checkpoint = Checkpoint::open(&assets::tiny_glm5()).unwrap();
    let ids = ids(&text_of(&checkpoint));
    let options = EngineOptions {
        context: Some(40),
        ..EngineOptions::default()
    };
    let inventory = Inventory::of(&checkpoint);
    let mut engine = Engine::new(inventory, &checkpoint, cpu(Math::Fast), options).unwrap();
    let checks = function(&mut engine, &checkpoint, &probe(Arithmetic::EightBit, &ids));
    assert_eq!(outcomes(&checks), SOUND);
    assert!(
        checks[0].covered.contains("39 rows at positions 0 to 38"),
        "{}",
        checks[0].covered
    );
    assert!(
        checks[1].covered.contains("1 row at position 39"),
        "{}",
        checks[1].covered
    );
}
