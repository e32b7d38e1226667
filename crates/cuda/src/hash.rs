//! The hash of a weight where it lies ([`glim_plan::fingerprint`]): eight bytes come back in place of all (`kernels/hash.cu`).

use glim_plan::{GgmlType, fingerprint};

use crate::cache::Cache;
use crate::code::Code;
use crate::driver::{Config, DeviceMemory, Gpu, Param, Stream, launch};
use crate::error::CudaError;
use crate::kernels::Kernel;
use crate::random::fields;

/// Threads of a block, and blocks of a multiprocessor: enough loads in flight to read memory at its speed.
const THREADS: u32 = 128;
const BLOCKS: u32 = 16;

/// The hash of the `bytes` bytes of a weight of type `ty` at `address`.
pub(crate) fn hash(
    gpu: &Gpu,
    cache: &Cache,
    ty: GgmlType,
    address: u64,
    bytes: usize,
) -> Result<u64, CudaError> {
    let unit = fingerprint::unit(ty).to_string();
    let kernel = Kernel::new("hash", "hash", &[("UNIT", unit.as_str())]);
    let mut code = Code::new(gpu, cache.clone());
    code.load([(&kernel, 0)].into_iter())?;
    let stream = Stream::new(gpu)?;
    let sum = DeviceMemory::new(gpu, size_of::<u64>(), "a hash")?;
    sum.fill(0, &stream)?;
    let most = gpu.facts().multiprocessors * BLOCKS;
    let needed = u32::try_from(bytes.div_ceil(16 * THREADS as usize)).unwrap_or(most);
    let config = Config {
        grid: [needed.clamp(1, most), 1, 1],
        threads: THREADS,
        shared: 0,
        dependent: false,
    };
    let params = [
        Param::u64(address),
        Param::u64((bytes / ty.block_bytes()) as u64),
        Param::u32(ty.block_bytes() as u32),
        Param::structure(&fields(ty)),
        Param::u64(sum.address()),
    ];
    launch(code.function(&kernel)?, config, &params, &stream)?;
    stream.synchronise()?;
    let mut found = [0; 8];
    sum.read(0, &mut found)?;
    Ok(u64::from_le_bytes(found))
}
