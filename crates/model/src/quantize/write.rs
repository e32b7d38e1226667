//! Carrying a plan out: decode, look, encode, write.
//!
//! A tensor is cut into runs of whole rows of one matrix. Each thread takes a run, decodes it to f32, refuses what is no
//! number, and encodes it with the weights of the matrix; the runs are written in order ([`super::pipeline`]). So memory
//! is a few runs for each thread, whatever the file's size, and the bytes do not depend on the number of threads.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;

use glim_gguf::{Gguf, Source, Writer};
use glim_quant::{GgmlType, QuantError, dequantize, quantize_weighted};

use super::pipeline::in_order;
use super::plan::{PlannedTensor, QuantizePlan, origin};
use super::{Place, QuantizeError};

/// Elements that a thread converts at a time, at least one row: some ten milliseconds of search.
const RUN_ELEMENTS: usize = 1 << 18;
/// Numbers from here on round to infinity in F16: half-way between 65504 and what would be next.
const F16_INFINITY: f32 = 65520.0;
/// The same in BF16: half-way between the largest number and 2^128.
const BF16_INFINITY: f32 = f32::from_bits(0x7f7f_8000);

impl QuantizePlan<'_> {
    /// Writes the file at `path`; one that is there is replaced. `progress` is called with the bytes of a run of tensor data
    /// when it has been written; they add up to [`QuantizePlan::data_bytes`]. `threads` is at least 1.
    ///
    /// # Errors
    /// [`QuantizeError::SameFile`] if `path` is one of the files that are read; [`QuantizeError::NeedsImatrix`]; a number
    /// that is none or that the type cannot store, with its place; weights that do not fit; the file cannot be written.
    /// No file is left behind then, and one that was there is as it was.
    pub fn write(
        &self,
        path: &Path,
        threads: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), QuantizeError> {
        if reads_from(self.gguf, path) {
            return Err(QuantizeError::SameFile { path: path.into() });
        }
        if let Some(tensor) = self.without_weights() {
            return Err(QuantizeError::NeedsImatrix {
                tensor: tensor.source.name.clone(),
                ty: tensor.choice.ty,
            });
        }
        let shared = RefCell::new(Shared {
            scratches: vec![Vec::new(); threads.max(1)],
            failure: None,
            progress,
        });
        let mut writer = Writer::with_metadata(self.metadata.clone());
        for tensor in &self.tensors {
            let shared = &shared;
            let produce = move |out: &mut dyn Write| {
                let shared = &mut *shared.borrow_mut();
                let done = self.produce(tensor, shared, out);
                done.map_err(|failure| match failure {
                    Failure::Io(error) => error,
                    Failure::Quantize(error) => {
                        // An `io::Error` is all that may pass through the writer: the reason waits here.
                        shared.failure = Some(error);
                        io::Error::other("a tensor cannot be quantised")
                    }
                })
            };
            let (name, dims) = (&tensor.source.name, &tensor.source.ggml_dims);
            let source = Source::Stream(Box::new(produce));
            writer.tensor(name, dims, tensor.choice.ty, source);
        }
        let written = writer.write(path);
        match shared.into_inner().failure {
            Some(failure) => Err(failure),
            None => Ok(written?),
        }
    }

    /// One tensor's bytes.
    fn produce(
        &self,
        tensor: &PlannedTensor<'_>,
        shared: &mut Shared<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let weights = self.weights(tensor)?;
        let job = Job::new(self.gguf, tensor, weights.as_deref());
        let progress = &mut *shared.progress;
        in_order(
            job.runs(),
            &mut shared.scratches,
            |run, values, bytes| job.convert(run, values, bytes),
            |bytes| {
                out.write_all(bytes).map_err(Failure::Io)?;
                progress(bytes.len() as u64);
                Ok(())
            },
        )
    }

    /// The weights of its columns, if they play a part.
    fn weights(&self, tensor: &PlannedTensor<'_>) -> Result<Option<Vec<f32>>, Failure> {
        let imatrix = match self.imatrix {
            Some(imatrix) if tensor.changes() && tensor.choice.ty.block_elems() > 1 => imatrix,
            _ => return Ok(None),
        };
        let name = &tensor.source.name;
        let weights = imatrix.weights(name, tensor.columns(), tensor.matrices());
        weights.map_err(Failure::Quantize)
    }
}

/// Whether `path` is one of the files that `gguf` is mapped from.
fn reads_from(gguf: &Gguf, path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else {
        return false; // not there yet
    };
    let is_same = |part: &Path| part.canonicalize().is_ok_and(|part| part == path);
    gguf.parts().iter().any(|part| is_same(&part.path))
}

/// What the tensors' turns share.
struct Shared<'a> {
    /// Decoded numbers, one buffer for each thread.
    scratches: Vec<Vec<f32>>,
    failure: Option<QuantizeError>,
    progress: &'a mut dyn FnMut(u64),
}

/// Why a tensor's turn ended.
enum Failure {
    Io(io::Error),
    Quantize(QuantizeError),
}

/// One tensor, cut into runs.
struct Job<'a> {
    origin: String,
    name: &'a str,
    from: GgmlType,
    to: GgmlType,
    data: &'a [u8],
    /// `[matrices, columns]`.
    weights: Option<&'a [f32]>,
    columns: usize,
    /// Rows of a matrix.
    rows: usize,
    matrices: usize,
    /// Rows of a run.
    run_rows: usize,
    /// Runs of a matrix.
    matrix_runs: usize,
}

impl<'a> Job<'a> {
    fn new(gguf: &'a Gguf, tensor: &PlannedTensor<'a>, weights: Option<&'a [f32]>) -> Self {
        let columns = tensor.columns();
        let rows = tensor.source.ggml_dims.get(1).copied().unwrap_or(1) as usize;
        let run_rows = (RUN_ELEMENTS / columns.max(1)).max(1);
        Self {
            origin: origin(gguf),
            name: &tensor.source.name,
            from: tensor.source.ty,
            to: tensor.choice.ty,
            data: gguf.data(tensor.source),
            weights,
            columns,
            rows,
            matrices: tensor.matrices(),
            run_rows,
            matrix_runs: rows.div_ceil(run_rows),
        }
    }

    fn runs(&self) -> usize {
        if self.columns == 0 {
            return 0;
        }
        self.matrices * self.matrix_runs
    }

    fn convert(
        &self,
        run: usize,
        values: &mut Vec<f32>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let (matrix, first_row) = (
            run / self.matrix_runs,
            run % self.matrix_runs * self.run_rows,
        );
        let rows = self.run_rows.min(self.rows - first_row);
        let elements = rows * self.columns;
        let start = (matrix * self.rows + first_row) * self.columns;
        let stored = |element: usize| element / self.from.block_elems() * self.from.block_bytes();
        let source = &self.data[stored(start)..stored(start + elements)];
        let failed = |element: usize, problem: String| {
            Failure::Quantize(QuantizeError::BadNumber {
                origin: self.origin.clone(),
                tensor: self.name.to_owned(),
                place: Place {
                    matrix: (self.matrices > 1).then_some(matrix),
                    row: first_row + element / self.columns,
                    column: element % self.columns,
                },
                problem,
            })
        };
        if self.from.can_decode() {
            values.resize(elements, 0.0);
            dequantize(self.from, source, values).map_err(|error| failed(0, error.to_string()))?;
            if let Some(i) = values.iter().position(|x| !x.is_finite()) {
                let what = if values[i].is_nan() {
                    "NaN"
                } else {
                    "infinite"
                };
                return Err(failed(i, format!("is {what}, expected a finite number")));
            }
        }
        if self.from == self.to {
            bytes.extend_from_slice(source);
            return Ok(());
        }
        if let Some((i, limit)) = beyond(self.to, values) {
            let (found, to) = (values[i], self.to);
            return Err(failed(
                i,
                format!("is {found}, and the largest number of {to} is {limit}"),
            ));
        }
        let weights = self
            .weights
            .and_then(|weights| weights.chunks(self.columns).nth(matrix));
        bytes.resize(elements / self.to.block_elems() * self.to.block_bytes(), 0);
        quantize_weighted(self.to, values, weights, bytes).map_err(|error| match error {
            QuantError::ScaleOverflow { first, .. } => failed(
                first,
                format!(
                    "begins a block of numbers that are too large for {} (BF16 and F32 store them)",
                    self.to
                ),
            ),
            other => failed(0, other.to_string()),
        })
    }
}

/// The first number that a float type would turn into an infinity, and the type's largest.
fn beyond(to: GgmlType, values: &[f32]) -> Option<(usize, &'static str)> {
    let (infinity, limit) = match to {
        GgmlType::F16 => (F16_INFINITY, "65504"),
        GgmlType::BF16 => (BF16_INFINITY, "3.39e38"),
        _ => return None,
    };
    let at = values.iter().position(|x| x.abs() >= infinity);
    at.map(|i| (i, limit))
}
