//! Sums of squares against a computation of their definition: what each weight is multiplied with, from the model's formulas
//! in f64.
//!
//! The brute force knows no plans and no caches: it takes the logical tensors as numbers, and computes one layer's input
//! after the other with every position seeing all before it. So the model's `index_topk` is at least the window here, and
//! what the indexer chooses does not matter.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use glim_engine::{Engine, EngineError, EngineOptions, ImatrixOptions, imatrix};
use glim_model::quantize::{Entry, Sums};
use glim_model::{Checkpoint, Inventory};
use glim_plan::reference::{ReferenceBackend, ReferenceOptions};
use glim_quant::{GgmlType, dequantize};
use glim_testkit::tiny::{Dims, Tiny, TinyFile};
use glim_text::TokenId;

/// Tokens of a window; chunks are shorter.
const WINDOW: usize = 23;

/// Relative difference of a sum. Activations are f32 after some tens of roundings of 2^-24 in each of three layers, against
/// f64 here; squares have twice the relative error. The largest that this model shows is 1.1e-6.
const TOLERANCE: f64 = 1e-5;

fn dims() -> Dims {
    Dims {
        vocab_size: 67,
        n_routed_experts: 5,
        index_topk: WINDOW,
        full: vec![true, false, true],
        ..Dims::default()
    }
}

fn ids(n: usize) -> Vec<TokenId> {
    (0..n)
        .map(|i| TokenId((i * i * 31 + 7 * i + 3) as u32 % 67))
        .collect()
}

fn collect(file: &TinyFile, options: ImatrixOptions, max_chunk: usize) -> Sums {
    let checkpoint = Checkpoint::from_gguf(file.gguf()).unwrap();
    let engine_options = EngineOptions {
        context: Some(WINDOW),
        max_chunk,
        ..EngineOptions::default()
    };
    let backend = Box::new(ReferenceBackend::new(ReferenceOptions::default()));
    let inventory = Inventory::of(&checkpoint);
    let mut engine = Engine::new(inventory, &checkpoint, backend, engine_options).unwrap();
    let ids = ids(2 * WINDOW + 5);
    imatrix(&mut engine, &checkpoint, &ids, options, |_, _, _| ())
        .unwrap()
        .sums
}

fn options() -> ImatrixOptions {
    ImatrixOptions {
        window: WINDOW,
        output: true,
        threads: 2,
    }
}

type Row = Vec<f64>;

/// The model by its formulas, and the sums of what its matrices are multiplied with.
struct Brute {
    checkpoint: Checkpoint,
    sums: BTreeMap<String, (Vec<f64>, Vec<u64>)>,
}

impl Brute {
    fn tensor(&self, name: &str) -> (Vec<f64>, Vec<usize>) {
        let desc = self
            .checkpoint
            .tensor(name)
            .unwrap_or_else(|| panic!("no {name}"));
        let mut values = vec![0f32; desc.elements()];
        dequantize(desc.ty, &self.checkpoint.data(desc).unwrap(), &mut values).unwrap();
        let values = values.into_iter().map(f64::from).collect();
        (values, desc.shape.clone())
    }

    /// Counts `x` as a row of matrix `i` of `n`, with counts of each or of all.
    fn see(&mut self, name: &str, i: usize, n: usize, each: bool, x: &[f64]) {
        let entry = self.sums.entry(name.to_owned()).or_insert_with(|| {
            let counts = if each { n } else { 1 };
            (vec![0.0; n * x.len()], vec![0; counts])
        });
        for (sum, x) in entry.0[i * x.len()..].iter_mut().zip(x) {
            *sum += x * x;
        }
        if each {
            entry.1[i] += 1;
        } else if i == 0 {
            entry.1[0] += 1;
        }
    }

    fn linear(&mut self, name: &str, x: &[Row]) -> Vec<Row> {
        let (weight, shape) = self.tensor(name);
        x.iter().for_each(|row| self.see(name, 0, 1, false, row));
        x.iter()
            .map(|row| product(&weight, shape[1], row))
            .collect()
    }

    fn norm(&self, name: &str, x: &[Row], eps: f32) -> Vec<Row> {
        let (weight, _) = self.tensor(name);
        let normed = |row: &Row| -> Row {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (mean + f64::from(eps)).sqrt();
            row.iter()
                .zip(&weight)
                .map(|(x, w)| x * scale * w)
                .collect()
        };
        x.iter().map(normed).collect()
    }

    fn window(&mut self, ids: &[TokenId]) {
        let c = self.checkpoint.config().clone();
        let (table, _) = self.tensor("token_embd.weight");
        let d = c.hidden_size;
        let row = |id: &TokenId| table[id.0 as usize * d..][..d].to_vec();
        let mut h: Vec<Row> = ids.iter().map(row).collect();
        for layer in 0..c.n_layers {
            let name = |what: &str| format!("blk.{layer}.{what}.weight");
            let a = self.norm(&name("attn_norm"), &h, c.rms_norm_eps);
            add(&mut h, &self.attention(layer, &a));
            let f = self.norm(&name("ffn_norm"), &h, c.rms_norm_eps);
            let out = if c.is_moe(layer) {
                let mut out = self.experts(layer, &f);
                add(&mut out, &self.swiglu(layer, "_shexp", &f));
                out
            } else {
                self.swiglu(layer, "", &f)
            };
            add(&mut h, &out);
        }
        let last = self.norm("output_norm.weight", &h, c.rms_norm_eps);
        self.linear("output.weight", &last);
    }

    fn attention(&mut self, layer: usize, a: &[Row]) -> Vec<Row> {
        let c = self.checkpoint.config().clone();
        let name = |what: &str| format!("blk.{layer}.{what}.weight");
        let (heads, rank, nope, rope) = (
            c.n_heads,
            c.kv_lora_rank,
            c.qk_nope_head_dim,
            c.qk_rope_head_dim,
        );
        let q_a = self.linear(&name("attn_q_a"), a);
        let q_a = self.norm(&name("attn_q_a_norm"), &q_a, c.latent_norm_eps);
        let mut q = self.linear(&name("attn_q_b"), &q_a);
        if self.checkpoint.tensor(&name("indexer.attn_q_b")).is_some() {
            self.linear(&name("indexer.attn_q_b"), &q_a);
            self.linear(&name("indexer.attn_k"), a);
            self.linear(&name("indexer.proj"), a);
        }
        let mut kv = self.linear(&name("attn_kv_a_mqa"), a);
        let latent: Vec<Row> = kv.iter().map(|row| row[..rank].to_vec()).collect();
        let latent = self.norm(&name("attn_kv_a_norm"), &latent, c.latent_norm_eps);
        for (position, (q, kv)) in q.iter_mut().zip(&mut kv).enumerate() {
            for head in q.chunks_mut(nope + rope) {
                rotate(&mut head[nope..], position, c.rope_theta);
            }
            rotate(&mut kv[rank..], position, c.rope_theta);
        }
        let (k_b, _) = self.tensor(&name("attn_k_b"));
        let (v_b, _) = self.tensor(&name("attn_v_b"));
        let mut out = Vec::new();
        for t in 0..a.len() {
            let mut o = Vec::new();
            for head in 0..heads {
                let q = q[t][head * (nope + rope)..][..nope + rope].to_vec();
                self.see(&name("attn_k_b"), head, heads, false, &q[..nope]);
                let absorbed = product(&k_b[head * rank * nope..][..rank * nope], nope, &q[..nope]);
                let score = |s: usize| -> f64 {
                    let rotated: f64 = q[nope..]
                        .iter()
                        .zip(&kv[s][rank..])
                        .map(|(a, b)| a * b)
                        .sum();
                    let rest: f64 = absorbed.iter().zip(&latent[s]).map(|(a, b)| a * b).sum();
                    f64::from(c.softmax_scale()) * (rest + rotated)
                };
                let scores: Vec<f64> = (0..=t).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let total: f64 = p.iter().sum();
                let mut u = vec![0.0; rank];
                for (p, latent) in p.iter().zip(&latent) {
                    u.iter_mut()
                        .zip(latent)
                        .for_each(|(u, c)| *u += p / total * c);
                }
                self.see(&name("attn_v_b"), head, heads, false, &u);
                let v = c.v_head_dim;
                o.extend(product(&v_b[head * v * rank..][..v * rank], rank, &u));
            }
            out.push(o);
        }
        self.linear(&name("attn_output"), &out)
    }

    fn swiglu(&mut self, layer: usize, which: &str, x: &[Row]) -> Vec<Row> {
        let name = |what: &str| format!("blk.{layer}.ffn_{what}{which}.weight");
        let gate = self.linear(&name("gate"), x);
        let up = self.linear(&name("up"), x);
        let inner: Vec<Row> = gate.iter().zip(&up).map(|(g, u)| gated(g, u)).collect();
        self.linear(&name("down"), &inner)
    }

    fn experts(&mut self, layer: usize, x: &[Row]) -> Vec<Row> {
        let c = self.checkpoint.config().clone();
        let m = &c.moe;
        let name = |what: &str| format!("blk.{layer}.{what}");
        let logits = self.linear(&name("ffn_gate_inp.weight"), x);
        let (bias, _) = self.tensor(&name("exp_probs_b.bias"));
        let [gate, up, down] =
            ["gate", "up", "down"].map(|w| name(&format!("ffn_{w}_exps.weight")));
        let [gates, ups, downs] = [&gate, &up, &down].map(|name| self.tensor(name).0);
        let (n, inner, d) = (m.n_routed_experts, m.moe_intermediate_size, c.hidden_size);
        let mut out = Vec::new();
        for (x, logits) in x.iter().zip(&logits) {
            let scores: Vec<f64> = logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect();
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| (scores[*b] + bias[*b]).total_cmp(&(scores[*a] + bias[*a])));
            let chosen = &order[..m.num_experts_per_tok];
            let total: f64 = chosen.iter().map(|e| scores[*e]).sum();
            let mut sum = vec![0.0; d];
            for &e in chosen {
                self.see(&gate, e, n, true, x);
                self.see(&up, e, n, true, x);
                let of = |w: &[f64]| product(&w[e * inner * d..][..inner * d], d, x);
                let h = gated(&of(&gates), &of(&ups));
                self.see(&down, e, n, true, &h);
                let y = product(&downs[e * d * inner..][..d * inner], inner, &h);
                let norm = if m.norm_topk_prob { total } else { 1.0 };
                let weight = scores[e] / norm * f64::from(m.routed_scaling_factor);
                sum.iter_mut().zip(y).for_each(|(s, y)| *s += weight * y);
            }
            out.push(sum);
        }
        out
    }
}

fn product(weight: &[f64], columns: usize, x: &[f64]) -> Row {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum();
    weight.chunks_exact(columns).map(dot).collect()
}

fn gated(gate: &[f64], up: &[f64]) -> Row {
    let value = |(g, u): (&f64, &f64)| g / (1.0 + (-g).exp()) * u;
    gate.iter().zip(up).map(value).collect()
}

fn add(h: &mut [Row], out: &[Row]) {
    for (h, out) in h.iter_mut().zip(out) {
        h.iter_mut().zip(out).for_each(|(h, x)| *h += x);
    }
}

/// Pairs `(2i, 2i + 1)`; frequency and angle in f32, as the model has them.
fn rotate(x: &mut [f64], position: usize, theta: f32) {
    let n = x.len();
    for (i, pair) in x.chunks_mut(2).enumerate() {
        let frequency = (f64::from(theta)).powf(-2.0 * i as f64 / n as f64) as f32;
        let angle = f64::from(position as f32 * frequency);
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * angle.cos() - b * angle.sin();
        pair[1] = a * angle.sin() + b * angle.cos();
    }
}

#[track_caller]
fn assert_close(name: &str, found: &Entry, sums: &[f64], counts: &[u64]) {
    assert_eq!(found.counts, counts, "{name}");
    assert_eq!(found.sums.len(), sums.len(), "{name}");
    // Against the largest: a column may hold next to nothing.
    let max = sums.iter().copied().fold(0.0, f64::max);
    for (j, (found, expected)) in found.sums.iter().zip(sums).enumerate() {
        let difference = (f64::from(*found) - expected).abs() / max;
        assert!(
            difference <= TOLERANCE,
            "{name}, column {j}: {found}, expected {expected} ({difference:.1e} of the largest)"
        );
    }
}

#[test]
fn sums_are_what_the_formulas_give() {
    let file = Tiny::new(21).dims(dims()).matrices(GgmlType::F32).build();
    let found = collect(&file, options(), 16);
    assert_eq!((found.chunk_count, found.chunk_size), (2, WINDOW as u32));
    let mut brute = Brute {
        checkpoint: Checkpoint::from_gguf(file.gguf()).unwrap(),
        sums: BTreeMap::new(),
    };
    ids(2 * WINDOW)
        .chunks(WINDOW)
        .for_each(|window| brute.window(window));
    let names: Vec<&String> = found.entries.keys().collect();
    assert_eq!(names, brute.sums.keys().collect::<Vec<_>>());
    for (name, (sums, counts)) in &brute.sums {
        assert_close(name, &found.entries[name], sums, counts);
    }
    let k_b = &found.entries["blk.1.attn_k_b.weight"];
    assert_eq!((k_b.sums.len(), &k_b.counts[..]), (3 * 32, &[46][..]));
    let met: u64 = found.entries["blk.1.ffn_up_exps.weight"]
        .counts
        .iter()
        .sum();
    assert_eq!(met, 46 * 2, "two experts a token");
}

#[test]
fn neither_chunks_nor_threads_change_a_bit() {
    let file = Tiny::new(22).dims(dims()).build();
    let expected = collect(&file, options(), 16);
    for (threads, max_chunk) in [(1, 16), (7, 16), (2, 64), (3, 5)] {
        let options = ImatrixOptions {
            threads,
            ..options()
        };
        // Sums of several chunks are added to one another in f64: beyond f32, and so the same after rounding but for a
        // rare tie; these have none.
        assert!(
            collect(&file, options, max_chunk) == expected,
            "{threads} threads, chunks of {max_chunk}"
        );
    }
}

#[test]
fn fused_and_older_forms_have_entries_under_their_own_names() {
    let plain = Tiny::new(23).dims(dims()).build();
    let expected = collect(&plain, options(), 64);
    let fused = collect(&plain.clone().fuse_gate_up(), options(), 64);
    let gate = &expected.entries["blk.2.ffn_gate_exps.weight"];
    assert_eq!(&fused.entries["blk.2.ffn_gate_up_exps.weight"], gate);
    let legacy = collect(&plain.legacy_kv_b(), options(), 64);
    let kv_b = &legacy.entries["blk.0.attn_kv_b.weight"];
    assert_eq!((kv_b.sums.len(), &kv_b.counts[..]), (128, &[46][..]));
    assert!(kv_b.sums.iter().all(|sum| *sum > 0.0));
}

#[test]
fn the_output_head_is_left_out_unless_asked_for() {
    let file = Tiny::new(24).dims(dims()).build();
    let without = ImatrixOptions {
        output: false,
        ..options()
    };
    assert!(
        !collect(&file, without, 64)
            .entries
            .contains_key("output.weight")
    );
    assert!(
        collect(&file, options(), 64)
            .entries
            .contains_key("output.weight")
    );
}

#[test]
fn a_text_shorter_than_a_window_is_refused() {
    let file = Tiny::new(25).dims(dims()).build();
    let checkpoint = Checkpoint::from_gguf(file.gguf()).unwrap();
    let backend = Box::new(ReferenceBackend::new(ReferenceOptions::default()));
    let inventory = Inventory::of(&checkpoint);
    let engine_options = EngineOptions {
        context: Some(WINDOW),
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(inventory, &checkpoint, backend, engine_options).unwrap();
    let error = imatrix(&mut engine, &checkpoint, &ids(9), options(), |_, _, _| ()).unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::TextTooShort {
                found: 9,
                expected: WINDOW
            }
        ),
        "{error}"
    );
}
