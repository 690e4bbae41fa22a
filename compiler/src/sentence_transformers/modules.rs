//! sentence-transformers modules that follow the transformer: pooling, dense layers, normalizations.
//!
//! A single pooling, with or without a normalization, is left to the pipeline, where token vectors remain available.
//! Any other module list becomes part of the graph, which then returns a vector per text.

use kivu_engine::kernel::LANES;

use super::poolings::{self, Masks, Poolings};
use crate::{
    files::{
        config::ConfigFile,
        model_folder::ModelFolder,
        weights::{Weight, Weights},
    },
    model_types::QUANTIZER,
    onnx::{Value, float, functions, integer, layers::Layers},
    quantize::transpose,
};
use kivu::{
    Error, Result,
    pipeline::{POOLING_MASK, embedding::pooling::Pooling},
};

/// Output name for a graph that pools.
pub const POOLED: &str = "sentence_embedding";
/// Vector names in layer settings: token and text vectors.
pub const TOKENS: &str = "token_embeddings";
const TEXT: &str = POOLED;
/// A CrossEncoder's label scores.
const SCORES: &str = "scores";

/// Modules that turn token vectors into a text vector.
#[derive(Debug)]
pub struct Modules {
    list: Vec<Module>,
    /// Width of a token's vector after the modules so far.
    tokens: usize,
    /// Width of a text's vector after the modules so far; `None` before the pooling.
    text: Option<usize>,
    /// The graph's output name.
    output: &'static str,
}

#[derive(Debug)]
enum Module {
    /// Concatenated poolings.
    Pooling(Poolings),
    Dense(Dense),
    LayerNorm {
        gain: Vec<f32>,
        bias: Vec<f32>,
        /// SHA-256 over the module's file.
        source: String,
    },
    Normalize,
    /// Rounds hyperbolic tangents to 8 bits (pplx-embed-v1).
    Quantizer,
    /// Keeps this many leading values.
    Truncation(usize),
}

/// A linear layer with an activation.
#[derive(Debug)]
pub struct Dense {
    inputs: usize,
    outputs: usize,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    activation: Activation,
    /// Whether it transforms token vectors rather than the text's.
    is_of_tokens: bool,
    /// Added to the result (PyLate).
    residual: Residual,
    /// SHA-256 over the layer's file; `None` if its weights are the model's.
    source: Option<String>,
}

#[derive(Debug, Default)]
enum Residual {
    #[default]
    None,
    Input,
    /// Multiplies the input by a matrix with the same shape as the weights.
    Projected(Vec<f32>),
}

/// `torch.nn` activation functions that dense layers may have.
#[derive(Clone, Copy, Debug)]
enum Activation {
    Identity,
    Operator(&'static str),
    /// An ONNX Runtime operator.
    Microsoft(&'static str),
}

impl Modules {
    /// An empty list, for tokens with `width` values.
    pub fn new(width: usize) -> Self {
        Self {
            list: Vec::new(),
            tokens: width,
            text: None,
            output: POOLED,
        }
    }

    /// An empty list, for text vectors with `width` values.
    pub fn of_texts(width: usize) -> Self {
        Self {
            text: Some(width),
            ..Self::new(width)
        }
    }

    /// Mean pooling, sentence-transformers' default for models without its files.
    pub fn mean(width: usize) -> Self {
        Self {
            list: vec![Module::pooling(Pooling::Mean)],
            ..Self::of_texts(width)
        }
    }

    /// The last token's vector, scaled to length 1.
    pub fn last_token(width: usize) -> Self {
        Self {
            list: vec![Module::pooling(Pooling::LastToken), Module::Normalize],
            ..Self::of_texts(width)
        }
    }

    /// Appends a linear layer on text vectors, with weights called `name`.
    pub fn project(&mut self, weights: &Weights, name: &str, outputs: usize) -> Result<()> {
        let inputs = self.dimensions()?;
        let layer = Dense::with_bias(weights, &format!("{name}."), [outputs, inputs])?;
        self.list.push(Module::Dense(Dense {
            is_of_tokens: false,
            ..layer
        }));
        self.text = Some(outputs);
        Ok(())
    }

    /// Label scores from the last token's vector, as output `output`. `weight` has a row with `width` values per label.
    pub fn of_last_token(width: usize, weight: Vec<f32>, output: &'static str) -> Self {
        let labels = weight.len() / width.max(1);
        let layer = Dense {
            inputs: width,
            outputs: labels,
            weight,
            bias: None,
            activation: Activation::Identity,
            is_of_tokens: false,
            residual: Residual::None,
            source: None,
        };
        let list = vec![Module::pooling(Pooling::LastToken), Module::Dense(layer)];
        Self {
            list,
            text: Some(labels),
            output,
            ..Self::new(width)
        }
    }

    /// Adds a module with the class `class` and its files in `folder`.
    pub fn add(&mut self, class: &str, folder: &ModelFolder) -> Result<()> {
        if self.output == SCORES {
            return Err(Error::model(format!(
                "expected no module after the one that makes `{SCORES}`, but found `{class}`"
            )));
        }
        let module = match class {
            "Pooling" => {
                let poolings = poolings::open(folder)?;
                self.text = Some(self.tokens * poolings.modes.len());
                Module::Pooling(poolings)
            }
            "Dense" => {
                let layer = Dense::open(folder, [Some(self.tokens), self.text], TEXT)?;
                match layer.is_of_tokens {
                    true => self.tokens = layer.outputs,
                    false => self.text = Some(layer.outputs),
                }
                if makes_scores(folder)? {
                    self.output = SCORES;
                }
                Module::Dense(layer)
            }
            "LayerNorm" => {
                let dimension: usize = ConfigFile::open(folder)?.require("dimension")?;
                if self.text != Some(dimension) {
                    return Err(misplaced(folder, dimension, self.text));
                }
                let weights = open_weights(folder)?;
                let take = |name| Ok::<_, Error>(weights.take(name, &[dimension])?.values.clone());
                let (gain, bias) = (take("norm.weight")?, take("norm.bias")?);
                weights.check_all(|_| false)?;
                Module::LayerNorm {
                    gain,
                    bias,
                    source: weights.sha256,
                }
            }
            "Normalize" if self.text.is_some() => {
                expect_normalized(folder, TEXT)?;
                Module::Normalize
            }
            "Normalize" => {
                return Err(Error::model(
                    "expected `Normalize` after `Pooling`, but found it before",
                ));
            }
            QUANTIZER if self.text.is_some() => Module::Quantizer,
            // Dropout has an effect in training only.
            "Dropout" => return Ok(()),
            other => {
                return Err(Error::model(format!(
                    "expected modules among `Transformer`, `Pooling`, `Dense`, `LayerNorm`, `Normalize`, `Dropout`, \
                     but found `{other}`"
                )));
            }
        };
        self.list.push(module);
        Ok(())
    }

    /// Appends a truncation to this many leading values.
    pub fn truncate(&mut self, dimensions: usize) {
        if self.text.is_some_and(|width| width > dimensions) {
            self.text = Some(dimensions);
            self.list.push(Module::Truncation(dimensions));
        }
    }

    /// Number of dimensions in a text's vector.
    pub fn dimensions(&self) -> Result<usize> {
        self.text.ok_or_else(|| {
            Error::model("expected a `Pooling` module in `modules.json`, but found none")
        })
    }

    /// The same modules with another output name.
    pub fn with_output(self, output: &'static str) -> Self {
        Self { output, ..self }
    }

    /// The graph's output name.
    pub fn output(&self) -> &'static str {
        self.output
    }

    /// Whether the list ends with a normalization, which requests can turn off.
    pub fn normalizes(&self) -> bool {
        matches!(self.list.last(), Some(Module::Normalize))
    }

    /// The pooling left to the pipeline; `None` if the graph must contain the modules.
    pub fn pooling(&self) -> Option<Pooling> {
        let [
            Module::Pooling(Poolings {
                modes,
                includes_prompt: true,
            }),
        ] = self.before_normalization()
        else {
            return None;
        };
        match modes[..] {
            [mode] => Some(mode),
            _ => None,
        }
    }

    /// Whether a prompt's tokens are pooled.
    pub fn includes_prompt(&self) -> bool {
        self.list.iter().all(|module| match module {
            Module::Pooling(poolings) => poolings.includes_prompt,
            _ => true,
        })
    }

    /// SHA-256 of each module's weights.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter_map(|module| match module {
            Module::Dense(layer) => layer.source(),
            Module::LayerNorm { source, .. } => Some(source),
            Module::Pooling(_) | Module::Normalize | Module::Quantizer | Module::Truncation(_) => {
                None
            }
        })
    }

    /// Whether no module but normalizations follows.
    pub fn is_empty(&self) -> bool {
        self.before_normalization().is_empty()
    }

    /// Whether the native engine supports the modules: a pooling, and then layers for text vectors.
    pub fn suit_native_engine(&self) -> bool {
        let list = self.before_normalization();
        let next = list.iter().skip(1).map(Some).chain([None]);
        list.iter()
            .zip(next)
            .all(|(module, next)| module.is_native(next))
    }

    /// All modules but normalizations at the end.
    fn before_normalization(&self) -> &[Module] {
        let end = self
            .list
            .iter()
            .rposition(|module| !matches!(module, Module::Normalize));
        &self.list[..end.map_or(0, |last| last + 1)]
    }

    /// Writes the modules, without a final normalization, from token vectors (batch, sequence, width) or text vectors
    /// (batch, width), and the INT64 attention mask (batch, sequence), to a vector per text.
    pub fn write(&self, layers: &mut Layers<'_>, vectors: &Value, mask: &Value) -> Value {
        let (mut tokens, mut text) = (vectors.clone(), vectors.clone());
        for (place, module) in self.before_normalization().iter().enumerate() {
            let name = format!("modules.{place}");
            match module {
                Module::Pooling(Poolings {
                    modes,
                    includes_prompt,
                }) => {
                    let pooled = match includes_prompt {
                        true => mask.clone(),
                        false => layers.graph.input(POOLING_MASK, &["batch", "sequence"]),
                    };
                    let masks = Masks {
                        tokens: mask,
                        pooled: &pooled,
                    };
                    text = poolings::write(&mut layers.graph, modes, &tokens, &masks);
                }
                Module::Dense(layer) if layer.is_of_tokens => {
                    tokens = layer.write(layers, &name, &tokens)
                }
                Module::Dense(layer) => text = layer.write(layers, &name, &text),
                Module::LayerNorm { gain, bias, .. } => {
                    // `eps` in `torch.nn.LayerNorm`.
                    const EPSILON: f32 = 1e-5;
                    let graph = &mut layers.graph;
                    let gain = graph.floats(&format!("{name}.gain"), &[gain.len()], gain);
                    let bias = graph.floats(&format!("{name}.bias"), &[bias.len()], bias);
                    let attributes = vec![integer("axis", -1), float("epsilon", EPSILON)];
                    text = graph.node("LayerNormalization", &[&text, &gain, &bias], attributes);
                }
                Module::Normalize => {
                    let graph = &mut layers.graph;
                    let last = graph.last_axis();
                    // `eps` in `torch.nn.functional.normalize`.
                    let least = graph.scalar("least_length", 1e-12);
                    let length = graph.reduce_keeping("ReduceL2", &[&text, &last]);
                    let length = graph.max(&length, &least);
                    text = graph.div(&text, &length);
                }
                Module::Quantizer => {
                    text = layers
                        .graph
                        .function("RoundedTanh", [&text], functions::rounded_tanh);
                }
                Module::Truncation(dimensions) => {
                    let graph = &mut layers.graph;
                    let (first, last) = (graph.zero(), graph.last_axis());
                    let end = graph.integers("truncated_dimensions", &[*dimensions as i64]);
                    text = graph.slice(&text, &first, &end, &last);
                }
            }
        }
        text
    }
}

impl Module {
    fn pooling(mode: Pooling) -> Self {
        Self::Pooling(Poolings {
            modes: vec![mode],
            includes_prompt: true,
        })
    }

    /// Whether the native engine supports the module before `next`. A final result may have any width.
    fn is_native(&self, next: Option<&Self>) -> bool {
        match self {
            Self::Pooling(Poolings {
                modes,
                includes_prompt,
            }) => {
                *includes_prompt
                    && matches!(
                        modes[..],
                        [Pooling::Cls | Pooling::Mean | Pooling::LastToken]
                    )
            }
            Self::Dense(layer) => {
                let has_lanes = layer.outputs.is_multiple_of(LANES);
                let is_known = match layer.activation {
                    Activation::Identity => next.is_none() || has_lanes,
                    Activation::Operator("Sigmoid") => false,
                    Activation::Operator(_) | Activation::Microsoft(_) => has_lanes,
                };
                is_known && !layer.is_of_tokens && matches!(layer.residual, Residual::None)
            }
            Self::LayerNorm { gain, .. } => gain.len().is_multiple_of(LANES),
            Self::Quantizer => true,
            Self::Normalize | Self::Truncation(_) => false,
        }
    }
}

/// Refuses a `Normalize` with its file in `folder` if it scales other vectors than those called `expected`.
pub fn expect_normalized(folder: &ModelFolder, expected: &str) -> Result<()> {
    // Older versions of sentence-transformers write no file.
    let config = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    let input: String = config
        .get("module_input_name")?
        .unwrap_or_else(|| TEXT.to_owned());
    let output: String = config
        .get("module_output_name")?
        .unwrap_or_else(|| input.clone());
    if [&input, &output] == [expected; 2] {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected a `Normalize` from `{expected}` to `{expected}` in `{}`, but found `{input}` and `{output}`",
        folder.display()
    )))
}

impl Dense {
    /// Reads a layer for token or text vectors with the given widths; transforms the vectors called `default` if the
    /// file does not say.
    fn open(
        folder: &ModelFolder,
        [of_tokens, of_text]: [Option<usize>; 2],
        default: &'static str,
    ) -> Result<Self> {
        let config = ConfigFile::open(folder)?;
        let input: String = config
            .get("module_input_name")?
            .unwrap_or_else(|| default.to_owned());
        let output = config
            .get("module_output_name")?
            .unwrap_or_else(|| input.clone());
        let is_known = match input.as_str() {
            TEXT => [TEXT, SCORES].contains(&output.as_str()),
            TOKENS => output == TOKENS,
            _ => false,
        };
        if !is_known {
            return Err(Error::model(format!(
                "expected `module_input_name` and `module_output_name` to be both `{TEXT}` or both `{TOKENS}`, or \
                 `{TEXT}` and `{SCORES}`, in `{}`, but found `{input}` and `{output}`",
                folder.display()
            )));
        }
        let [inputs, outputs] = [
            config.require("in_features")?,
            config.require("out_features")?,
        ];
        let is_of_tokens = input == TOKENS;
        let width = if is_of_tokens { of_tokens } else { of_text };
        if width != Some(inputs) {
            return Err(misplaced(folder, inputs, width));
        }
        let weights = open_weights(folder)?;
        let bias = match config.is_set_or("bias", true)? {
            true => Some(weights.take("linear.bias", &[outputs])?.values.clone()),
            false => None,
        };
        let activation: Option<String> = config.get("activation_function")?;
        let layer = Self {
            inputs,
            outputs,
            weight: weights
                .take("linear.weight", &[outputs, inputs])?
                .values
                .clone(),
            bias,
            activation: Activation::of_class(activation.as_deref().unwrap_or("torch.nn.Tanh"))?,
            is_of_tokens,
            residual: match config.is_set("use_residual")? {
                false => Residual::None,
                true if inputs == outputs => Residual::Input,
                true => Residual::Projected(
                    weights
                        .take("residual.weight", &[outputs, inputs])?
                        .values
                        .clone(),
                ),
            },
            source: Some(weights.sha256.clone()),
        };
        weights.check_all(|_| false)?;
        Ok(layer)
    }

    /// The layer in `folder` that transforms token vectors with `width` values: those called `default` if the file does
    /// not say.
    pub fn of_tokens(folder: &ModelFolder, width: usize, default: &'static str) -> Result<Self> {
        let layer = Self::open(folder, [Some(width), None], default)?;
        match layer.is_of_tokens {
            true => Ok(layer),
            false => Err(misplaced(folder, layer.inputs, None)),
        }
    }

    /// A layer for token vectors with these weights and no activation.
    pub fn of_weights(weight: &Weight, bias: Option<Vec<f32>>) -> Result<Self> {
        let [outputs, inputs] = weight.shape[..] else {
            return Err(Error::model(format!(
                "expected a matrix, but found the shape {:?}",
                weight.shape
            )));
        };
        Ok(Self {
            inputs,
            outputs,
            weight: weight.values.clone(),
            bias,
            activation: Activation::Identity,
            is_of_tokens: true,
            residual: Residual::None,
            source: None,
        })
    }

    /// A layer for token vectors with the weights and the bias whose full names begin with `prefix`, and no activation.
    pub fn with_bias(weights: &Weights, prefix: &str, shape: [usize; 2]) -> Result<Self> {
        let bias = weights.take_whole(&format!("{prefix}bias"), &shape[..1])?;
        let weight = weights.take_whole(&format!("{prefix}weight"), &shape)?;
        Self::of_weights(weight, Some(bias.values.clone()))
    }

    /// The same layer, whose weights are from another file, with its SHA-256.
    pub fn with_source(self, sha256: &str) -> Self {
        Self {
            source: Some(sha256.to_owned()),
            ..self
        }
    }

    /// SHA-256 over the layer's file; `None` if its weights are the model's.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Output width.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The same layer, with the activation ReLU.
    pub fn with_relu(self) -> Self {
        Self {
            activation: Activation::Operator("Relu"),
            ..self
        }
    }

    /// Whether the native engine has the layer for token vectors.
    pub fn suits_native_engine(&self) -> bool {
        let has_activation = match self.activation {
            Activation::Identity => true,
            Activation::Operator("Relu") => self.outputs.is_multiple_of(LANES),
            Activation::Operator(_) | Activation::Microsoft(_) => false,
        };
        has_activation && matches!(self.residual, Residual::None)
    }

    pub fn write(&self, layers: &mut Layers<'_>, name: &str, input: &Value) -> Value {
        let graph = &mut layers.graph;
        // In fp32 at all precisions: a dense layer is small, and its errors go straight into the vectors.
        let weight = transpose(&self.weight, self.inputs);
        let weight = graph.floats(
            &format!("{name}.weight"),
            &[self.inputs, self.outputs],
            &weight,
        );
        let mut value = graph.matmul(input, &weight);
        if let Some(bias) = &self.bias {
            let bias = graph.floats(&format!("{name}.bias"), &[self.outputs], bias);
            value = graph.add(&value, &bias);
        }
        let value = match self.activation {
            Activation::Identity => value,
            Activation::Operator(operator) => graph.node(operator, &[&value], vec![]),
            Activation::Microsoft("QuickGelu") => {
                graph.microsoft("QuickGelu", &[&value], vec![float("alpha", 1.0)])
            }
            Activation::Microsoft(operator) => graph.microsoft(operator, &[&value], vec![]),
        };
        match &self.residual {
            Residual::None => value,
            Residual::Input => graph.add(&value, input),
            Residual::Projected(weight) => {
                let weight = transpose(weight, self.inputs);
                let shape = [self.inputs, self.outputs];
                let weight = graph.floats(&format!("{name}.residual"), &shape, &weight);
                let residual = graph.matmul(input, &weight);
                graph.add(&value, &residual)
            }
        }
    }
}

impl Activation {
    /// Activation for an instance of a `torch.nn` class.
    fn of_class(class: &str) -> Result<Self> {
        const PACKAGES: [&str; 3] = [
            "torch.nn.modules.activation.",
            "torch.nn.modules.linear.",
            "torch.nn.",
        ];
        match PACKAGES
            .iter()
            .find_map(|package| class.strip_prefix(package))
        {
            Some("Identity") => Ok(Self::Identity),
            Some("Tanh") => Ok(Self::Operator("Tanh")),
            Some("ReLU") => Ok(Self::Operator("Relu")),
            Some("Sigmoid") => Ok(Self::Operator("Sigmoid")),
            Some("GELU") => Ok(Self::Microsoft("Gelu")),
            Some("SiLU") => Ok(Self::Microsoft("QuickGelu")),
            _ => Err(Error::model(format!(
                "expected an `activation_function` among `Identity`, `Tanh`, `ReLU`, `Sigmoid`, `GELU`, `SiLU` of \
                 `torch.nn`, but found `{class}`"
            ))),
        }
    }
}

/// Whether the layer in `folder` makes a CrossEncoder's scores.
pub fn makes_scores(folder: &ModelFolder) -> Result<bool> {
    let config = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    Ok(config
        .get::<String>("module_output_name")?
        .is_some_and(|output| output == SCORES))
}

/// Reads the weights for the module in `folder`.
fn open_weights(folder: &ModelFolder) -> Result<Weights> {
    if !Weights::are_in(folder) {
        return Err(Error::model(format!(
            "expected `model.safetensors` or `pytorch_model.bin` in `{}`, but found neither",
            folder.display()
        )));
    }
    Weights::open(folder)
}

fn misplaced(folder: &ModelFolder, expected: usize, found: Option<usize>) -> Error {
    let found = match found {
        Some(width) => format!("the module before it gives {width}"),
        None => "no `Pooling` comes before it".to_owned(),
    };
    Error::model(format!(
        "expected vectors of {expected} values for the module in `{}`, but found that {found}",
        folder.display()
    ))
}
