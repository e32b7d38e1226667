//! The table finds what it is there to find: backends that bend the reference's results a little.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use glim_plan::{
    BackendError, BufferKind, Caps, GgmlType, Op, Plan, ReadTarget, StateDecl, StepId, StepInputs,
    StepResults, WeightGroup, WeightSource,
};

use super::*;

/// How a backend goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// The last bit of one element.
    LastBit,
    /// A row takes on its neighbour's values when it has one.
    Company,
    /// NaN becomes zero.
    HidesNan,
    /// The second half of the first run's results is what the step gives ever after.
    Stale,
}

/// The reference with a fault.
struct Bent {
    inner: Box<dyn Backend>,
    fault: Fault,
    plan: Option<Plan>,
    first: Option<HashMap<String, Vec<u32>>>,
}

impl Bent {
    fn make(fault: Fault, poison: bool) -> Box<dyn Backend> {
        Box::new(Self {
            inner: reference(poison),
            fault,
            plan: None,
            first: None,
        })
    }

    fn bend(&mut self, name: &str, ty: GgmlType, width: usize, words: &mut [u32]) {
        match self.fault {
            Fault::LastBit if ty == GgmlType::F32 => words[0] ^= 1,
            Fault::Company if words.len() > width => words.copy_within(width..2 * width, 0),
            Fault::HidesNan => {
                let nans = words.iter_mut().filter(|w| f32::from_bits(**w).is_nan());
                nans.for_each(|w| *w = 0);
            }
            Fault::Stale => {
                let first = self.first.get_or_insert_default();
                let first = first.entry(name.into()).or_insert_with(|| words.to_vec());
                let half = words.len() / 2;
                words[half..].copy_from_slice(&first[half..]);
            }
            _ => {}
        }
    }
}

impl Backend for Bent {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn load(&mut self, g: &[WeightGroup], source: &dyn WeightSource) -> Result<(), BackendError> {
        self.inner.load(g, source)
    }

    fn alloc_state(
        &mut self,
        decls: &[StateDecl],
        block_size: usize,
        blocks: usize,
        slots: usize,
    ) -> Result<(), BackendError> {
        self.inner.alloc_state(decls, block_size, blocks, slots)
    }

    fn prepare(&mut self, plan: &Plan) -> Result<StepId, BackendError> {
        self.plan = Some(plan.clone());
        self.inner.prepare(plan)
    }

    fn run(&mut self, step: StepId, inputs: &StepInputs) -> Result<StepResults, BackendError> {
        let results = self.inner.run(step, inputs)?;
        let plan = self.plan.clone().unwrap();
        let mut bent = HashMap::new();
        for (_, b) in plan.buffers_where(|k| *k == BufferKind::Result) {
            let mut words: Vec<u32> = match b.dtype {
                GgmlType::F32 => results
                    .f32s(&b.name)
                    .unwrap()
                    .iter()
                    .map(|v| v.to_bits())
                    .collect(),
                _ => results
                    .i32s(&b.name)
                    .unwrap()
                    .iter()
                    .map(|v| *v as u32)
                    .collect(),
            };
            self.bend(&b.name, b.dtype, b.row_elements(), &mut words);
            bent.insert(b.name.clone(), words);
        }
        Ok(StepResults::new(bent))
    }

    fn read(&self, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        self.inner.read(target)
    }
}

/// Failures of a backend in the cases of `op` with F32 weights.
fn failures(fault: Fault, arithmetic: Arithmetic) -> Vec<String> {
    let make = |poison| Bent::make(fault, poison);
    let subject = Subject::new("bent", arithmetic, &make);
    let cases = expected()
        .iter()
        .filter(|e| e.case.name.starts_with("Linear F32") || e.case.name.starts_with("RmsNorm 33"));
    let check = |e: &Expected| check_case(&subject, &e.case, e.runs()).err();
    cases.filter_map(check).collect()
}

#[test]
fn faults_are_found() {
    for (fault, arithmetic, expected) in [
        (Fault::LastBit, Arithmetic::Exact, "all rows: "),
        (Fault::Company, Arithmetic::Fast, "all rows: "),
        (Fault::HidesNan, Arithmetic::Fast, "NaN: "),
        (Fault::Stale, Arithmetic::Exact, ""),
    ] {
        let found = failures(fault, arithmetic);
        assert!(!found.is_empty(), "{fault:?} passes");
        assert!(
            found.iter().any(|f| f.starts_with(expected)),
            "{fault:?}: {found:?}"
        );
    }
}

/// A new operation must come with a row of the table.
#[test]
fn every_operation_has_cases() {
    let mut kinds: Vec<&str> = expected()
        .iter()
        .flat_map(|e| &e.case.plan.ops)
        .flat_map(|node| node.op.parts())
        .map(Op::kind)
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    let all = [
        "Add",
        "AllGather",
        "AllReduce",
        "CacheAppend",
        "Embed",
        "ExpertFfn",
        "HeadProject",
        "IndexScore",
        "IndexSelect",
        "LayerNorm",
        "Linear",
        "LmHead",
        "MlaAttend",
        "RmsNorm",
        "Rope",
        "Route",
        "Sample",
        "SelectRows",
        "Shortlist",
        "SwiGlu",
        "TopKMerge",
    ];
    assert_eq!(kinds, all);
}

#[test]
fn the_reference_passes_its_own_table() {
    check(&Subject::new("reference", Arithmetic::Exact, &reference));
}
