//! A case: a small plan around one operation, its weights and its rows; and the builder of such plans.
//!
//! A plan's only way in is token ids, so an activation is an embedding table whose row `t` holds the values of token `t`, and an
//! identity product where it needs more axes. Both are exact in any arithmetic.

use glim_plan::{
    BufferId, Cols, GgmlType, InputExtents, InputKind, Op, Paging, Plan, PlanBuilder, Precision,
    Rows,
};

use super::blocks::{self, Random};
use super::layout::{Extras, GEOMETRY, Layout};
use crate::weights::Weights;

/// A token whose activations hold a NaN, and one whose activations hold an infinity, relative to the number of rows.
pub(super) const NAN_TOKEN: usize = 0;
pub(super) const INFINITE_TOKEN: usize = 1;
const SPECIAL_TOKENS: usize = 2;

/// One row of the table.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// Operation, weight type and sizes, layout.
    pub(super) name: String,
    pub(super) plan: Plan,
    pub(super) weights: Weights,
    pub(super) layout: Layout,
    pub(super) extras: Extras,
    /// Normalised mean squared error that fast arithmetic may have.
    pub(super) bound: f64,
    /// Whether tokens with NaN and infinite activations can be run: an operation that decides by its values cannot.
    pub(super) specials: bool,
}

impl Case {
    /// The token with a NaN or an infinity.
    pub(super) fn special(&self, which: usize) -> i32 {
        (self.layout.rows().len() + which) as i32
    }
}

/// Builds a case.
pub(super) struct Feed {
    pub(super) b: PlanBuilder,
    pub(super) layout: Layout,
    pub(super) extras: Extras,
    pub(super) random: Random,
    name: String,
    weights: Weights,
}

impl Feed {
    pub(super) fn new(name: String, layout: &Layout) -> Self {
        let mut b = PlanBuilder::new("parity", layout.step, GEOMETRY);
        b.extents(InputExtents {
            outputs: layout.step.tokens(),
            ..InputExtents::default()
        });
        // It says how many rows are live, whether or not the operation reads it.
        b.input(InputKind::CuSeqlens);
        Self {
            b,
            layout: layout.clone(),
            extras: Extras::default(),
            random: Random::named(20_260_301, &name),
            name,
            weights: Weights::default(),
        }
    }

    /// Columns of `forced_topk`, and tokens of the mask; before these inputs are used.
    pub(super) fn extents(&mut self, forced: usize, vocab_size: usize) {
        self.b.extents(InputExtents {
            outputs: self.layout.step.tokens(),
            vocab_size,
            forced,
        });
    }

    /// Rows of the step.
    pub(super) fn tokens(&self) -> usize {
        self.layout.step.tokens()
    }

    /// A weight of `ty` with random values, of such size that a product keeps the size of its input.
    pub(super) fn weight(&mut self, name: &str, ty: GgmlType, shape: &[usize]) -> BufferId {
        let fan_in = shape.last().copied().unwrap_or(1) as f32;
        let elements = shape.iter().product();
        let bytes = blocks::weight(ty, elements, fan_in.sqrt().recip(), &mut self.random);
        self.given(name, ty, shape, bytes)
    }

    /// An F32 weight with these values.
    pub(super) fn values(&mut self, name: &str, shape: &[usize], values: &[f32]) -> BufferId {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.given(name, GgmlType::F32, shape, bytes)
    }

    fn given(&mut self, name: &str, ty: GgmlType, shape: &[usize], bytes: Vec<u8>) -> BufferId {
        self.weights.insert(name, ty, shape, bytes);
        self.b.weight(name, ty, shape)
    }

    /// A temporary `[T, axes…]` of f32.
    pub(super) fn temp(&mut self, name: &str, axes: &[usize]) -> BufferId {
        let shape = [&[self.tokens()], axes].concat();
        self.b.temp(name, GgmlType::F32, &shape, Rows::Tokens)
    }

    /// A result `[T, axes…]`.
    pub(super) fn result(&mut self, name: &str, ty: GgmlType, axes: &[usize]) -> BufferId {
        let shape = [&[self.tokens()], axes].concat();
        self.b.result(name, ty, &shape, Rows::Tokens)
    }

    /// An activation `[T, axes…]` with values in −1..1.
    pub(super) fn activation(&mut self, name: &str, axes: &[usize]) -> BufferId {
        let width: usize = axes.iter().product();
        let rows = self.layout.rows().len();
        let values = self.random.units(rows * width);
        self.activation_of(name, axes, values)
    }

    /// An activation `[T, axes…]` with these values by token.
    pub(super) fn activation_of(
        &mut self,
        name: &str,
        axes: &[usize],
        mut values: Vec<f32>,
    ) -> BufferId {
        let width: usize = axes.iter().product();
        let rows = self.layout.rows().len();
        assert_eq!(values.len(), rows * width, "a row of {name} for each token");
        // The special tokens: the first row's values, one of them replaced.
        for special in [f32::NAN, f32::INFINITY] {
            let mut row = values[..width].to_vec();
            row[self.random.below(width)] = special;
            values.extend(row);
        }
        let shape = [rows + SPECIAL_TOKENS, width];
        let table = self.values(&format!("{name}.table"), &shape, &values);
        let tokens = self.b.input(InputKind::Tokens);
        let flat = self.temp(&format!("{name}.flat"), &[width]);
        let embed = Op::Embed {
            tokens,
            carry: None,
            table,
            out: flat,
        };
        self.b.op(&format!("{name}.embed"), embed);
        if axes.len() == 1 {
            return flat;
        }
        let mut one = vec![0.0; width * width];
        one.iter_mut().step_by(width + 1).for_each(|v| *v = 1.0);
        let one = self.values(&format!("{name}.one"), &[width, width], &one);
        let out = self.temp(name, axes);
        let shape = Op::Linear {
            x: flat,
            weights: vec![one],
            outs: vec![out],
            precision: Precision::F32,
        };
        self.b.op(&format!("{name}.shape"), shape);
        out
    }

    /// An activation `[T, axes…]` that is a product of a few values with F32 weights: for rows too wide for an identity product.
    /// In fast arithmetic it is itself only as exact as a short sum.
    pub(super) fn wide_activation(&mut self, name: &str, axes: &[usize]) -> BufferId {
        const INNER: usize = 8;
        let x = self.activation(&format!("{name}.inner"), &[INNER]);
        let weight = format!("{name}.spread");
        let weight = self.weight(&weight, GgmlType::F32, &[axes.iter().product(), INNER]);
        let out = self.temp(name, axes);
        let spread = Op::Linear {
            x,
            weights: vec![weight],
            outs: vec![out],
            precision: Precision::F32,
        };
        self.b.op(&format!("{name}.spread"), spread);
        out
    }

    /// The output rows of an activation, `[N, width]`.
    pub(super) fn select(&mut self, x: BufferId, width: usize, name: &str) -> BufferId {
        let output_rows = self.b.input(InputKind::OutputRows);
        let shape = [self.tokens(), width];
        let out = self.b.temp(name, GgmlType::F32, &shape, Rows::Outputs);
        let op = Op::SelectRows {
            x,
            output_rows,
            out,
        };
        self.b.op(&format!("{name}.select"), op);
        out
    }

    /// Appends columns of an activation to a paged state of F32.
    pub(super) fn append(&mut self, parts: Vec<Cols>, name: &str) -> BufferId {
        let slots = self.b.input(InputKind::SlotMapping);
        let width = parts.iter().map(|p| p.len).sum();
        let state = self.b.paged_state(name, GgmlType::F32, width);
        let op = Op::CacheAppend {
            parts,
            slots,
            state,
        };
        self.b.op(&format!("{name}.append"), op);
        state
    }

    pub(super) fn paging(&mut self) -> Paging {
        Paging {
            positions: self.b.input(InputKind::Positions),
            cu_seqlens: self.b.input(InputKind::CuSeqlens),
            block_tables: self.b.input(InputKind::BlockTables),
        }
    }

    /// The case; `bound` is that of fast arithmetic.
    pub(super) fn finish(self, bound: f64) -> Case {
        Case {
            name: self.name,
            plan: self.b.finish(),
            weights: self.weights,
            layout: self.layout,
            extras: self.extras,
            bound,
            specials: true,
        }
    }
}

/// All columns of a buffer whose last axis has `len` elements.
pub(super) fn all(buffer: BufferId, len: usize) -> Cols {
    Cols {
        buffer,
        start: 0,
        len,
    }
}
