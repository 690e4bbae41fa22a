//! One ONNX Runtime session: the only place that speaks to the `ort` crate about graphs.

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
    value::{DynValue, Outlet, TensorElementType, TensorRef, ValueType},
};

use super::{
    library::Runtime,
    mapped::MappedFiles,
    run::{Names, run},
    weights::{Constants, Weights},
};
use crate::{
    backend::{Signature, TensorSpec, processor::Int8Instructions},
    error::{Error, Result},
    tensor::{ElementType, Elements, Tensor},
};

/// `kOrtSessionOptionsAvx2PrecisionMode`: has the runtime replace signed 8-bit weights w by unsigned ones, w + 128,
/// and the zero points along with them, which must be constants of the graph.
const UNSIGNED_WEIGHTS: &str = "session.x64quantprecision";

/// `kOrtSessionOptionsMlasDisableKleidiAi`: leaves out the kernels of KleidiAI. Where an arm64 processor has SME, as
/// QEMU's `max` does, those of ONNX Runtime 1.26 give wrong products of 8-bit integers.
const NO_KLEIDIAI: &str = "mlas.disable_kleidiai";

/// A graph that is not loaded yet.
#[derive(Debug)]
pub enum Graph {
    /// In a file. Weights in a file of their own will be mapped, not read.
    File {
        /// The ONNX file.
        path: PathBuf,
        /// The files of its weights. A run fails where one of them was written to.
        mapped: Arc<MappedFiles>,
    },
    /// In memory, with its weights, which will be used where they are.
    Memory {
        /// The ONNX file.
        bytes: Vec<u8>,
        /// Its weights in other files.
        constants: Constants,
    },
}

impl Graph {
    /// Graphs in memory, in whose weights all that their files hold is filled.
    pub fn in_memory(graphs: Vec<Vec<u8>>, weights: Weights) -> Result<Vec<Self>> {
        let graphs = graphs.into_iter().zip(weights.into_constants()?);
        Ok(graphs.map(|(bytes, constants)| Self::Memory { bytes, constants }).collect())
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for Graph {
    fn from(path: &P) -> Self {
        Self::File { path: path.as_ref().to_owned(), mapped: Arc::default() }
    }
}

/// A loaded graph, which any number of threads can run at once.
#[derive(Debug)]
pub struct Session {
    session: OrtSession,
    mapped: Arc<MappedFiles>,
    signature: Signature,
    names: Names,
}

impl Session {
    /// Loads a graph, which is taken as it is: graphs are optimised when they are built. A run takes `threads`
    /// threads.
    ///
    /// Products of 8-bit integers are exact on every processor: where those of unsigned and signed integers
    /// saturate, weights become unsigned while the graph is loaded.
    pub fn open(runtime: Runtime, graph: impl Into<Graph>, threads: NonZeroUsize) -> Result<Self> {
        let graph = graph.into();
        let plain = || builder(runtime, GraphOptimizationLevel::Disable, threads);
        // The runtime makes weights unsigned at this level only.
        let exact = || {
            builder(runtime, GraphOptimizationLevel::Level2, threads)
                .and_then(|builder| Ok(builder.with_config_entry(UNSIGNED_WEIGHTS, "1")?))
        };
        let session = match Int8Instructions::detected().saturate() {
            // It fails where products share weights, of which `keeps_signed_weights` tells.
            true => load(exact, &graph).or_else(|_| load(plain, &graph)),
            false => load(plain, &graph),
        };
        let (what, mapped) = match graph {
            Graph::File { path, mapped } => (format!("the graph `{}`", path.display()), mapped),
            Graph::Memory { .. } => ("the graph".to_owned(), Arc::default()),
        };
        let session = session.map_err(|error| Error::model_because(format!("cannot load {what}"), error))?;
        let signature = Signature {
            inputs: session.inputs().iter().map(describe).collect::<Result<_>>()?,
            outputs: session.outputs().iter().map(describe).collect::<Result<_>>()?,
        };
        let names = Names::new(&signature)?;
        Ok(Self { session, mapped, signature, names })
    }

    /// Lets the runtime optimise the graph at `source` and writes what comes out to `target`, without
    /// anything that depends on the machine it is run on.
    pub fn optimise(runtime: Runtime, source: &Path, target: &Path) -> Result<()> {
        builder(runtime, GraphOptimizationLevel::Level2, NonZeroUsize::MIN)
            .and_then(|builder| Ok(builder.with_optimized_model_path(target)?))
            .and_then(|mut builder| builder.commit_from_file(source))
            .map(|_| ())
            .map_err(|error| {
                Error::model_because(format!("cannot optimise the graph `{}`", source.display()), error)
            })
    }

    /// The inputs that the graph takes and the outputs that it gives.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs one batch: inputs and outputs in the order of the signature.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.signature.check_inputs(inputs)?;
        let failed = |error| Error::inference_because("the model failed to run", error);
        let values = inputs.iter().map(borrow).collect::<ort::Result<Vec<_>>>().map_err(failed)?;
        let outputs = self.run_values(&values)?;
        self.signature.outputs.iter().zip(&outputs).map(|(spec, value)| copy(spec, value)).collect()
    }

    /// Runs one batch on the runtime's own values: nothing is copied on its way in or out. There has to be one
    /// value for each input, in the order of the signature.
    ///
    /// Mapped weights are looked at before and after: a run on weights that were written to gives no result. What is cut
    /// off them during a run still ends the process, which nothing but a copy in memory could keep from happening.
    pub(super) fn run_values(&self, inputs: &[SessionInputValue<'_>]) -> Result<Vec<DynValue>> {
        self.mapped.require_unchanged()?;
        let outputs = run(&self.session, &self.names, inputs)
            .map_err(|error| Error::inference_because("the model failed to run", error))?;
        self.mapped.require_unchanged()?;
        Ok(outputs)
    }
}

fn load(builder: impl FnOnce() -> ort::Result<SessionBuilder>, graph: &Graph) -> ort::Result<OrtSession> {
    let mut builder = builder()?;
    match graph {
        Graph::File { path, .. } => builder.commit_from_file(path),
        Graph::Memory { bytes, constants } => {
            for (name, value) in constants {
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
    let builder = OrtSession::builder(runtime.environment())?;
    let builder = match cfg!(target_arch = "aarch64") {
        true => builder.with_config_entry(NO_KLEIDIAI, "1")?,
        false => builder,
    };
    Ok(builder
        .with_optimization_level(level)?
        .with_intra_threads(threads.get())?
        .with_inter_threads(1)?
        // A memory pattern is kept for every shape ever seen, and texts come in every length.
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
    let ValueType::Tensor { ty, shape, .. } = outlet.dtype() else { return Err(unsupported()) };
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
        Elements::Bytes(_) => return Err(ort::Error::new("graphs take no strings here")),
    })
}

fn copy(spec: &TensorSpec, value: &DynValue) -> Result<Tensor> {
    let wrong = |error| {
        Error::inference_because(format!("the model's output `{}` is not what it declares", spec.name), error)
    };
    let (shape, elements) = match spec.element_type {
        ElementType::Fp32 => {
            let (shape, values) = value.try_extract_tensor::<f32>().map_err(wrong)?;
            (shape, Elements::Fp32(values.to_vec()))
        }
        ElementType::Int32 => {
            let (shape, values) = value.try_extract_tensor::<i32>().map_err(wrong)?;
            (shape, Elements::Int32(values.to_vec()))
        }
        ElementType::Int64 => {
            let (shape, values) = value.try_extract_tensor::<i64>().map_err(wrong)?;
            (shape, Elements::Int64(values.to_vec()))
        }
        // A graph with such an output is refused when it loads.
        ElementType::Bytes => {
            return Err(Error::inference_because("graphs give no strings here", spec.name.clone()));
        }
    };
    Tensor::new(shape.iter().map(|side| *side as usize).collect(), elements)
}
