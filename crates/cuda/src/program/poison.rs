//! Poison: what outputs are filled with before their operation, and how they are looked through afterwards.

use glim_plan::{BufferDecl, BufferId, GgmlType, InputKind, Op, Plan};

use super::{Arg, Launch, int};
use crate::kernels::Kernel;

/// What every word of an output holds before its operation.
pub(crate) fn fill_word(buffer: &BufferDecl) -> u32 {
    match buffer.dtype {
        GgmlType::F32 => f32::NAN.to_bits(),
        _ => i32::MIN as u32,
    }
}

/// The launch that raises a fault for the first poisoned element in the live rows of an output.
pub(crate) fn check(plan: &Plan, op: &Op, id: BufferId) -> Result<Launch, String> {
    let decl = plan.buffer(id);
    // A row of scores is written up to its own position.
    let positions = match op {
        Op::IndexScore { .. } => plan.input(InputKind::Positions),
        _ => None,
    };
    Ok(Launch {
        kernel: Kernel::new("poison", "poison_check", &[]),
        grid: [1, 1, 1],
        threads: 256,
        shared: 0,
        args: vec![
            Arg::Buffer(id),
            Arg::Rows(id),
            Arg::I32(int(decl.row_elements())?),
            Arg::I32(i32::from(decl.dtype == GgmlType::F32)),
            positions.map_or(Arg::Null, Arg::Buffer),
            Arg::Fault,
            Arg::OpIndex,
        ],
        dependent: false,
    })
}
