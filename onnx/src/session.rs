//! A session: a loaded graph.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

use ort::{
    session::{
        Session as OrtSession, SessionInputValue,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::{
        DynValue, Outlet, PrimitiveTensorElementType, TensorElementType, TensorRef, ValueType,
    },
};

use super::{
    external_weights::{ExternalInitializers, ExternalWeights},
    library::Runtime,
    run::{Names, run},
};
use kivu_base::{
    Error, Result,
    onnx_proto::ModelProto,
    regular_file,
    tensor::{ElementType, Elements, Tensor},
};
use kivu_core::backend::{
    MappedFiles, Signature, TensorSpec, processor::Int8Instructions, require_unchanged,
};

/// `kOrtSessionOptionsAvx2PrecisionMode`: ONNX Runtime replaces signed 8-bit weights w by unsigned ones, w + 128, and
/// adjusts their zero points, which must be graph constants.
const UNSIGNED_WEIGHTS: &str = "session.x64quantprecision";

/// `kOrtSessionOptionsMlasDisableKleidiAi`: does not use KleidiAI. On arm64 processors with SME, such as QEMU's `max`,
/// ONNX Runtime 1.26's int8 matmul kernels return wrong results.
const NO_KLEIDIAI: &str = "mlas.disable_kleidiai";

/// A graph to load.
#[derive(Debug)]
pub enum Graph {
    /// An ONNX file. Weights in other files are mapped.
    File {
        /// The ONNX file.
        path: PathBuf,
        /// Weight files, if they may change. Runs fail once one of them was written to.
        mapped: Option<Arc<dyn MappedFiles>>,
    },
    /// An ONNX file in memory. The weights are used in place.
    Memory {
        /// The ONNX file.
        bytes: Vec<u8>,
        /// Weights outside the graph.
        initializers: ExternalInitializers,
    },
}

impl Graph {
    /// Graphs in memory, with their weights, which have to be filled.
    pub fn in_memory(graphs: Vec<Vec<u8>>, weights: ExternalWeights) -> Result<Vec<Self>> {
        let graphs = graphs.into_iter().zip(weights.into_initializers()?);
        Ok(graphs
            .map(|(bytes, initializers)| Self::Memory {
                bytes,
                initializers,
            })
            .collect())
    }
}

impl Graph {
    /// Whether the graph has model-local functions.
    fn has_functions(&self) -> Result<bool> {
        let model = match self {
            Self::File { path, .. } => match regular_file::read(path) {
                Ok(bytes) => ModelProto::from_bytes(&bytes)?,
                // ONNX Runtime reports the error.
                Err(_) => return Ok(false),
            },
            Self::Memory { bytes, .. } => ModelProto::from_bytes(bytes)?,
        };
        Ok(!model.functions.is_empty())
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for Graph {
    fn from(path: &P) -> Self {
        Self::File {
            path: path.as_ref().to_owned(),
            mapped: None,
        }
    }
}

/// A loaded graph. Any number of threads can run it at the same time.
#[derive(Debug)]
pub struct Session {
    session: OrtSession,
    mapped: Option<Arc<dyn MappedFiles>>,
    signature: Signature,
    names: Names,
}

impl Session {
    /// Loads a graph without optimizing it, since `kivu build` optimizes graphs, except graphs for the native engine.
    /// Each run uses `threads` threads.
    ///
    /// Int8 products are exact on every processor: if u8 × i8 products saturate, the weights are
    /// converted to unsigned ones.
    pub fn open(runtime: Runtime, graph: impl Into<Graph>, threads: NonZeroUsize) -> Result<Self> {
        let graph = graph.into();
        // Weights in the native engine's layout are converted while the graph is loaded, not in each run.
        let level = match graph.has_functions()? {
            true => GraphOptimizationLevel::Level1,
            false => GraphOptimizationLevel::Disable,
        };
        let plain = || builder(runtime, level, threads);
        // ONNX Runtime converts weights only from this level on.
        let exact = || {
            builder(runtime, GraphOptimizationLevel::Level2, threads)
                .and_then(|builder| Ok(builder.with_config_entry(UNSIGNED_WEIGHTS, "1")?))
        };
        let session = match Int8Instructions::detected().saturate() {
            // Fails if products share weights, see `keeps_signed_weights`.
            true => load(exact, &graph).or_else(|_| load(plain, &graph)),
            false => load(plain, &graph),
        };
        let (what, mapped) = match graph {
            Graph::File { path, mapped } => (format!("the graph `{}`", path.display()), mapped),
            Graph::Memory { .. } => ("the graph".to_owned(), None),
        };
        let session =
            session.map_err(|error| Error::model_because(format!("cannot load {what}"), error))?;
        let signature = Signature {
            inputs: session
                .inputs()
                .iter()
                .map(describe)
                .collect::<Result<_>>()?,
            outputs: session
                .outputs()
                .iter()
                .map(describe)
                .collect::<Result<_>>()?,
        };
        let names = Names::new(&signature)?;
        Ok(Self {
            session,
            mapped,
            signature,
            names,
        })
    }

    /// Optimizes the graph at `source` and writes the result to `target`. The result does not depend on this machine.
    pub fn optimize(runtime: Runtime, source: &Path, target: &Path) -> Result<()> {
        builder(runtime, GraphOptimizationLevel::Level2, NonZeroUsize::MIN)
            .and_then(|builder| Ok(builder.with_optimized_model_path(target)?))
            .and_then(|mut builder| builder.commit_from_file(source))
            .map(drop)
            .map_err(|error| {
                Error::model_because(
                    format!("cannot optimize the graph `{}`", source.display()),
                    error,
                )
            })
    }

    /// Graph inputs and outputs.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs one batch. Inputs and outputs are in signature order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.signature.check_inputs(inputs)?;
        let values = inputs
            .iter()
            .map(borrow)
            .collect::<ort::Result<Vec<_>>>()
            .map_err(failed)?;
        let outputs = self.run_values(&values)?;
        self.signature
            .outputs
            .iter()
            .zip(&outputs)
            .map(|(spec, value)| copy(spec, value))
            .collect()
    }

    /// Runs one batch on ONNX Runtime's own values, without copies. `inputs` has one value per input,
    /// in signature order.
    ///
    /// Fails if mapped weights were written to before or during the run. Truncating them during a run still ends the
    /// process; only a copy in memory could prevent that.
    pub fn run_values(&self, inputs: &[SessionInputValue<'_>]) -> Result<Vec<DynValue>> {
        require_unchanged(self.mapped.as_deref())?;
        let outputs = run(&self.session, &self.names, inputs).map_err(failed)?;
        require_unchanged(self.mapped.as_deref())?;
        Ok(outputs)
    }
}

fn failed(error: ort::Error) -> Error {
    Error::inference_because("the model failed to run", error)
}

fn load(
    builder: impl FnOnce() -> ort::Result<SessionBuilder>,
    graph: &Graph,
) -> ort::Result<OrtSession> {
    let mut builder = builder()?;
    match graph {
        Graph::File { path, .. } => builder.commit_from_file(path),
        Graph::Memory {
            bytes,
            initializers,
        } => {
            for (name, value) in initializers {
                builder = builder.with_external_initializer(name, Arc::clone(value))?;
            }
            builder.commit_from_memory(bytes)
        }
    }
}

fn builder(
    runtime: Runtime,
    level: GraphOptimizationLevel,
    threads: NonZeroUsize,
) -> ort::Result<SessionBuilder> {
    let builder = OrtSession::builder(runtime.environment)?;
    let builder = match cfg!(target_arch = "aarch64") {
        true => builder.with_config_entry(NO_KLEIDIAI, "1")?,
        false => builder,
    };
    Ok(builder
        .with_optimization_level(level)?
        .with_intra_threads(threads.get())?
        .with_inter_threads(1)?
        // ONNX Runtime keeps a memory pattern for each shape, and texts have all lengths.
        .with_memory_pattern(false)?)
}

fn describe(outlet: &Outlet) -> Result<TensorSpec> {
    let unsupported = || {
        Error::model(format!(
            "expected `{}` to be a tensor of FP32, INT32 or INT64, but found {:?}",
            outlet.name(),
            outlet.dtype()
        ))
    };
    let ValueType::Tensor { ty, shape, .. } = outlet.dtype() else {
        return Err(unsupported());
    };
    let element_type = match ty {
        TensorElementType::Float32 => ElementType::Fp32,
        TensorElementType::Int32 => ElementType::Int32,
        TensorElementType::Int64 => ElementType::Int64,
        _ => return Err(unsupported()),
    };
    Ok(TensorSpec::new(outlet.name(), element_type, shape.to_vec()))
}

fn borrow(tensor: &Tensor) -> ort::Result<SessionInputValue<'_>> {
    let shape = tensor.shape();
    Ok(match tensor.elements() {
        Elements::Fp32(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        Elements::Int32(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        Elements::Int64(values) => TensorRef::from_array_view((shape, values.as_slice()))?.into(),
        Elements::Bytes(_) => return Err(ort::Error::new("string inputs are not supported")),
    })
}

fn copy(spec: &TensorSpec, value: &DynValue) -> Result<Tensor> {
    fn extract<T: PrimitiveTensorElementType + Copy>(
        value: &DynValue,
    ) -> ort::Result<(Vec<usize>, Vec<T>)> {
        let (shape, values) = value.try_extract_tensor::<T>()?;
        Ok((
            shape.iter().map(|side| *side as usize).collect(),
            values.to_vec(),
        ))
    }
    let extracted = match spec.element_type {
        ElementType::Fp32 => extract(value).map(|(shape, values)| (shape, Elements::Fp32(values))),
        ElementType::Int32 => {
            extract(value).map(|(shape, values)| (shape, Elements::Int32(values)))
        }
        ElementType::Int64 => {
            extract(value).map(|(shape, values)| (shape, Elements::Int64(values)))
        }
        ElementType::Bytes => Err(ort::Error::new("string outputs are not supported")),
    };
    let (shape, elements) = extracted.map_err(|error| {
        let message = format!(
            "the model's output `{}` does not match its declaration",
            spec.name
        );
        Error::inference_because(message, error)
    })?;
    Tensor::new(shape, elements)
}
