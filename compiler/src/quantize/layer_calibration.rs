//! Records the values that sample texts produce in a model's layers, to which the engine [fits](fit) 8-bit weights.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    mem,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use crate::quantize;
use async_trait::async_trait;
use kivu::{
    Result,
    backend::{
        Schedule, Signature,
        encoder::{EachText, EncoderBackend, EncoderCall, Sequence},
        native::{NativeModel, TextOutputs},
    },
    locked,
    repository::manifest::Precision,
    tokenizer::Encoding,
};
use kivu_engine::quantize::fit::{FittedLayer, Form, fit};

/// Texts for calibration, one per line. None of them is among the quality gate's.
pub const CALIBRATION_TEXTS: &str = include_str!("calibration-texts.txt");

/// Maximum number of tokens per layer.
const MAX_ROWS: usize = 6144;
/// Multiplications per token below which models are not fitted: it would take longer than the rest of their build.
pub const MIN_PRODUCTS: usize = 1 << 17;

/// Minimum number of tokens: with fewer, rounding would fit the texts instead of the language.
const MIN_ROWS: usize = 256;
/// Memory for input rows, in bytes. Larger models are calibrated in several passes.
const MEMORY: usize = 1 << 30;

/// A model in 8 bits, and texts to fit its layers to.
pub struct Calibration {
    model: Arc<NativeModel>,
    /// `int8` or `int8-blocks`.
    precision: Precision,
    runs: Vec<Run>,
    /// Number of tokens in all runs.
    tokens: usize,
    /// Input count per layer.
    widths: BTreeMap<String, usize>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Input rows for some layers that are not fitted yet.
    rows: BTreeMap<String, Vec<f32>>,
    /// Layers that were fitted, or could not be; layers that share weights are fitted once.
    fitted: BTreeMap<String, Option<Arc<FittedLayer>>>,
}

/// A text that the model ran on.
#[derive(Debug)]
struct Run {
    encoding: Encoding,
    labels: Option<Arc<[f32]>>,
}

/// Runs a model, and records the runs with its layers' inputs.
#[derive(Debug)]
struct Recorder {
    model: Arc<NativeModel>,
    runs: Arc<Mutex<Vec<Run>>>,
    observed: Arc<Mutex<Observed>>,
}

/// Inputs of a model's layers on sample texts.
#[derive(Debug, Default)]
struct Observed {
    /// Input count per layer.
    widths: BTreeMap<String, usize>,
    /// Input rows per layer, for as many layers as fit into [`MEMORY`].
    rows: BTreeMap<String, Vec<f32>>,
    /// Layers whose rows are not kept.
    others: BTreeSet<String>,
    /// Numbers that are reserved for rows.
    reserved: usize,
}

impl Calibration {
    /// Records the runs that `serve` makes on a backend with a model's graph.
    pub fn record(
        model: NativeModel,
        precision: Precision,
        serve: impl FnOnce(Arc<dyn EncoderBackend>) -> Result<()>,
    ) -> Result<Self> {
        let model = Arc::new(model);
        let runs: Arc<Mutex<Vec<Run>>> = Arc::default();
        let observed: Arc<Mutex<Observed>> = Arc::default();
        serve(Arc::new(Recorder {
            model: Arc::clone(&model),
            runs: Arc::clone(&runs),
            observed: Arc::clone(&observed),
        }))?;
        let (runs, Observed { widths, rows, .. }) = (take(&runs), take(&observed));
        let tokens = runs.iter().map(|run| run.encoding.len()).sum();
        let state = RefCell::new(State {
            rows,
            ..State::default()
        });
        Ok(Self {
            model,
            precision,
            runs,
            tokens,
            widths,
            state,
        })
    }

    /// Whether a layer with this name runs once per token, in 8 bits.
    pub fn knows(&self, layer: &str, inputs: usize) -> bool {
        self.widths.get(layer) == Some(&inputs)
    }

    /// Whether a layer runs once per token, in 8 bits.
    pub fn has_layers(&self) -> bool {
        !self.widths.is_empty()
    }

    /// Number of tokens in the texts.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether the texts have enough tokens.
    pub fn is_sufficient(&self) -> bool {
        self.tokens >= MIN_ROWS
    }

    /// Number of layers that were fitted, and how many of these have [`Columns`].
    pub fn counts(&self) -> [usize; 2] {
        let state = self.state.borrow();
        let fitted = || state.fitted.values().flatten();
        [
            fitted().count(),
            fitted().filter(|layer| layer.columns.is_some()).count(),
        ]
    }

    /// Fits a layer. `None` if the texts give it too few input rows, as in a head that runs once per text, or if its
    /// weights were quantized before and so keep their integers.
    pub fn fit(
        &self,
        name: &str,
        weight: &[f32],
        inputs: usize,
    ) -> Result<Option<Arc<FittedLayer>>> {
        if let Some(fitted) = self.state.borrow().fitted.get(name) {
            return Ok(fitted.clone());
        }
        let mut fitted = None;
        if self.knows(name, inputs) && !quantize::was_quantized(weight, inputs) {
            let rows = self.rows(name)?;
            if rows.len() >= MIN_ROWS * inputs && rows.iter().all(|value| value.is_finite()) {
                let form = match self.precision {
                    Precision::Int8Blocks => Form::int8_blocks(inputs),
                    _ => Form::int8(inputs, weight.len() / inputs),
                };
                fitted = Some(Arc::new(fit(weight, inputs, form, rows)));
            }
        }
        self.state
            .borrow_mut()
            .fitted
            .insert(name.to_owned(), fitted.clone());
        Ok(fitted)
    }

    /// A layer's input rows. Repeats the runs if its rows did not fit into [`MEMORY`] with those before.
    fn rows(&self, layer: &str) -> Result<Vec<f32>> {
        let mut state = self.state.borrow_mut();
        if !state.rows.contains_key(layer) {
            state.rows.clear();
            let rows = BTreeMap::from([(layer.to_owned(), Vec::new())]);
            let others = state.fitted.keys().cloned().collect();
            let observed = Arc::new(Mutex::new(Observed {
                rows,
                others,
                ..Observed::default()
            }));
            for run in &self.runs {
                observe(&self.model, run.sequence(), &observed)?;
            }
            state.rows = take(&observed).rows;
        }
        Ok(state.rows.remove(layer).unwrap_or_default())
    }
}

/// Runs a model, and adds its layers' inputs to `observed`.
fn observe(
    model: &NativeModel,
    sequence: Sequence<'_>,
    observed: &Arc<Mutex<Observed>>,
) -> Result<TextOutputs> {
    let observed = Arc::clone(observed);
    model.observe(sequence, move |layer, width, rows| {
        locked(&observed).add(layer, width, rows)
    })
}

impl Run {
    fn sequence(&self) -> Sequence<'_> {
        Sequence {
            labels: self.labels.as_ref(),
            ..Sequence::from(&self.encoding)
        }
    }
}

#[async_trait]
impl EncoderBackend for Recorder {
    fn signature(&self) -> &Signature {
        self.model.signature()
    }

    fn schedule(&self) -> Schedule {
        Schedule::row_by_row(NonZeroUsize::MIN, 0)
    }

    async fn run(&self, call: EncoderCall<'_>, each: &mut EachText<'_>) -> Result<()> {
        for (text, sequence) in call.batches.iter().flatten().enumerate() {
            locked(&self.runs).push(Run {
                encoding: sequence.encoding.clone(),
                labels: sequence.labels.cloned(),
            });
            let found = observe(&self.model, *sequence, &self.observed)?;
            each(
                text,
                &self.model.rows(sequence.encoding, call.outputs, &found),
            )?;
        }
        Ok(())
    }
}

impl Observed {
    /// Adds input rows until a layer has [`MAX_ROWS`].
    fn add(&mut self, layer: &str, width: usize, values: &[f32]) {
        if self.others.contains(layer) {
            return;
        }
        let most = MAX_ROWS * width;
        if !self.rows.contains_key(layer) {
            self.widths.insert(layer.to_owned(), width);
            if self.reserved + most > MEMORY / size_of::<f32>() && !self.rows.is_empty() {
                self.others.insert(layer.to_owned());
                return;
            }
            self.reserved += most;
        }
        let rows = self.rows.entry(layer.to_owned()).or_default();
        rows.extend_from_slice(&values[..values.len().min(most - rows.len())]);
    }
}

fn take<T: Default>(mutex: &Mutex<T>) -> T {
    mem::take(&mut *locked(mutex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quality::SENTENCES;

    #[test]
    fn calibration_texts_are_not_those_of_the_quality_gate() {
        assert!(CALIBRATION_TEXTS.lines().count() >= 90);
        for text in CALIBRATION_TEXTS.lines() {
            assert!(
                !text.trim().is_empty() && SENTENCES.lines().all(|other| other != text),
                "{text}"
            );
        }
    }
}
