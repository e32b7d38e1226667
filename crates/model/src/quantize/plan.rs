//! What a quantised file will hold, as plain data.

use glim_gguf::{Gguf, Metadata, TensorInfo};
use glim_quant::GgmlType;

use super::{Choice, Facts, Imatrix, Options, QuantizeError, TensorFacts, choose};

/// Version of the block formats, `GGML_QNT_VERSION`.
const QUANTIZATION_VERSION: u32 = 2;

/// A file to be written: keys, and tensors in the order of the source.
#[derive(Debug)]
pub struct QuantizePlan<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) imatrix: Option<&'a Imatrix>,
    /// The keys, in order: those of the source, but for what says how it is quantised.
    pub metadata: Metadata,
    /// The tensors, in order.
    pub tensors: Vec<PlannedTensor<'a>>,
}

/// One tensor of the file. Name and dimensions stay.
#[derive(Debug, Clone)]
pub struct PlannedTensor<'a> {
    /// The tensor in the source.
    pub source: &'a TensorInfo,
    /// Its type, and why.
    pub choice: Choice,
    /// The importance matrix knows it.
    pub has_weights: bool,
}

impl PlannedTensor<'_> {
    /// Elements of a row.
    pub fn columns(&self) -> usize {
        // Lossless: the reader refuses tensors whose dimensions do not fit into usize.
        self.source.ggml_dims.first().copied().unwrap_or(1) as usize
    }

    /// Matrices that stand one after the other: experts, or heads.
    pub fn matrices(&self) -> usize {
        self.source.ggml_dims.iter().skip(2).product::<u64>() as usize
    }

    /// Its bytes in the new file.
    pub fn byte_len(&self) -> u64 {
        let ty = self.choice.ty;
        self.source.elements() / ty.block_elems() as u64 * ty.block_bytes() as u64
    }

    /// Whether its bytes change.
    pub fn changes(&self) -> bool {
        self.choice.ty != self.source.ty
    }

    /// Whether what is rounded once more was quantised before.
    pub fn is_requantized(&self) -> bool {
        use GgmlType::{BF16, F16, F32};
        self.changes() && !matches!(self.source.ty, F32 | F16 | BF16)
    }
}

impl<'a> QuantizePlan<'a> {
    /// Plans a file. An `imatrix` makes [`Options::has_imatrix`] true.
    ///
    /// The model may be stored in any of its forms; what is fused or in an older form stays so.
    ///
    /// # Errors
    /// Those of [`Facts::of_file`] and [`choose`]; [`QuantizeError::CannotDecode`] for a tensor that must change and
    /// whose type has no decoder.
    pub fn new(
        gguf: &'a Gguf,
        options: &Options,
        imatrix: Option<&'a Imatrix>,
    ) -> Result<Self, QuantizeError> {
        let origin = origin(gguf);
        let facts = Facts::of_file(&origin, gguf.metadata())?;
        let infos = gguf.tensors();
        let tensors: Vec<TensorFacts<'_>> = infos
            .iter()
            .map(|info| TensorFacts {
                name: &info.name,
                ggml_dims: &info.ggml_dims,
                ty: info.ty,
            })
            .collect();
        let options = Options {
            has_imatrix: options.has_imatrix || imatrix.is_some(),
            ..options.clone()
        };
        let choices = choose(&facts, &tensors, &options)?;
        let knows = |name: &str| imatrix.is_some_and(|imatrix| imatrix.contains(name));
        let planned: Vec<_> = infos
            .iter()
            .zip(choices)
            .map(|(source, choice)| PlannedTensor {
                source,
                choice,
                has_weights: knows(&source.name),
            })
            .collect();
        let undecodable = |t: &&PlannedTensor<'_>| t.changes() && !t.source.ty.can_decode();
        if let Some(tensor) = planned.iter().find(undecodable) {
            return Err(QuantizeError::CannotDecode {
                origin,
                tensor: tensor.source.name.clone(),
                ty: tensor.source.ty,
            });
        }
        let mut metadata = gguf.metadata().clone();
        metadata.set("general.quantization_version", QUANTIZATION_VERSION);
        if let Some(mix) = options.mix {
            metadata.set("general.file_type", mix.file_type());
        }
        if let Some(imatrix) = imatrix {
            imatrix_keys(&mut metadata, imatrix);
        }
        Ok(Self {
            gguf,
            imatrix,
            metadata,
            tensors: planned,
        })
    }

    /// Bytes of all tensors in the source.
    pub fn source_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.source.bytes).sum()
    }

    /// Bytes of all tensors in the new file, without padding.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(PlannedTensor::byte_len).sum()
    }

    /// Bits of the new file's tensors for each of their elements.
    pub fn bits_per_weight(&self) -> f64 {
        let elements: u64 = self.tensors.iter().map(|t| t.source.elements()).sum();
        8.0 * self.data_bytes() as f64 / elements.max(1) as f64
    }

    /// The first tensor that needs an importance matrix which there is not.
    pub fn without_weights(&self) -> Option<&PlannedTensor<'a>> {
        let lacks = |t: &&PlannedTensor<'_>| t.choice.needs_imatrix && !t.has_weights;
        self.tensors.iter().find(lacks)
    }
}

/// The file that messages name.
pub(super) fn origin(gguf: &Gguf) -> String {
    let first = gguf.parts().first();
    first.map_or_else(String::new, |part| part.path.display().to_string())
}

/// As `main` of `tools/quantize/quantize.cpp` sets them.
fn imatrix_keys(metadata: &mut Metadata, imatrix: &Imatrix) {
    let path = imatrix.path().display().to_string();
    metadata.set("quantize.imatrix.file", path);
    if let Some(dataset) = imatrix.datasets().first() {
        metadata.set("quantize.imatrix.dataset", dataset.as_str());
    }
    let entries = u32::try_from(imatrix.n_entries()).unwrap_or(u32::MAX);
    metadata.set("quantize.imatrix.entries_count", entries);
    if imatrix.chunk_count() > 0 {
        metadata.set("quantize.imatrix.chunks_count", imatrix.chunk_count());
    }
}
