//! An encoder's graph, which is the same for both engines but for the layout of weights: queries, keys and values from one
//! multiplication, attention as one operator, residuals inside layer normalizations.

use std::collections::BTreeSet;

use super::{
    attention::{convolution::convolve, distance_tables::DistanceTables},
    config::{
        Bias, EmbeddingProjection, EncoderConfig, ExpertLayers, Gate, Head, HeadKind, HeadRead,
        Heads, Norms, OutputProjection, PositionTable, Positions, Tasks,
    },
    heads::OutputHeads,
};
use crate::{
    files::weights::{Weight, Weights},
    onnx::{
        GraphBuilder, ModelProto, Value, any, data_type, fixed, float, functions,
        layers::{
            AttentionWindow, BucketValues, Distance, Experts, Layers, Projection, TaskInput,
            alibi_slopes, attend_by_position, attention,
        },
    },
    quantize::layer_calibration::Calibration,
};
use kivu::{
    Result,
    backend::{Engine, TASK_IDS},
    repository::manifest::Precision,
};

/// Output for encoders without a head: one vector per token.
pub const OUTPUT: &str = "last_hidden_state";
/// Output for encoders with a head: one value per label.
pub const LOGITS: &str = "logits";

/// The precision, engine and layers that a graph is written for.
#[derive(Clone, Copy)]
pub struct GraphForm<'a> {
    pub precision: Precision,
    pub engine: Engine,
    /// Fits layers in 8 bits to sample texts.
    pub calibration: Option<&'a Calibration>,
}

/// Writes an encoder's graph, from token ids to [`LOGITS`] if it has a label head, or else to `heads`' outputs;
/// [`OUTPUT`] contains token vectors.
pub fn graph(
    config: &EncoderConfig,
    weights: &Weights,
    heads: &OutputHeads,
    form: GraphForm<'_>,
) -> Result<ModelProto> {
    let GraphForm {
        precision,
        engine,
        calibration,
    } = form;
    let width = config.layer_width();
    let mut layers = Layers::new(weights, precision, width, config.epsilon);
    layers.calibration = calibration;
    layers.norm = config.norm;
    if engine == Engine::Native {
        layers.graph = GraphBuilder::with_functions();
    }
    let ids = layers.graph.input("input_ids", &["batch", "sequence"]);
    let mask = layers.graph.input("attention_mask", &["batch", "sequence"]);
    if let Some(Tasks { names, rank, .. }) = &config.tasks {
        let ids = layers.graph.input(TASK_IDS, &["batch", "sequence"]);
        layers.tasks = Some(TaskInput {
            ids,
            count: names.len(),
            rank: *rank,
        });
    }
    let (mut tables, mut bias) = (None, Value::none());
    match &config.bias {
        Bias::Disentangled(settings) => {
            tables = DistanceTables::new(&mut layers, config, settings)?;
        }
        Bias::Relative { table, buckets } => {
            let values = BucketValues {
                table,
                heads: config.heads.queries,
                positions: config.encoder_limits.max_positions,
            };
            bias = buckets.bias(&mut layers, &ids, values)?;
        }
        Bias::None | Bias::Alibi => {}
    }
    let attention_mask = mask;
    let mask = layers.graph.cast(&attention_mask, data_type::INT32);
    let mut writer = Writer {
        config,
        layers,
        tables,
        bias,
        ids,
        mask,
    };
    let embedded = writer.embeddings(None)?;
    let hidden = match &config.names.norms {
        Norms::After { .. } => writer.with_norms_after(&embedded)?,
        Norms::Before { .. } => writer.with_norms_before(&embedded)?,
    };
    let hidden = match &config.decoder {
        Some(decoder) => writer.decode(decoder, &hidden)?,
        None => hidden,
    };
    let hidden = match config.details.output_projection {
        Some(OutputProjection { name, inputs }) => {
            let projection = Projection {
                name: name.to_owned(),
                outputs: config.encoder_limits.hidden,
                has_bias: false,
            };
            writer.project(&[projection], &hidden, inputs)?
        }
        None => hidden,
    };
    if let Some(head) = &config.head {
        let logits = writer.head(head, &hidden)?;
        let labels = fixed(head.labels.len());
        match head.kind {
            HeadKind::Text => writer
                .layers
                .graph
                .output(&logits, LOGITS, [any("batch"), labels]),
            HeadKind::Tokens => {
                writer.layers.graph.output(
                    &logits,
                    LOGITS,
                    [any("batch"), any("sequence"), labels],
                );
            }
        }
    } else {
        heads.write(
            &mut writer.layers,
            config,
            [&hidden, &writer.ids, &attention_mask],
            OUTPUT,
        )?;
    }
    weights.check_all(|name| is_unused(config, heads, name))?;
    Ok(writer
        .layers
        .graph
        .finish(&config.encoder_limits.architecture))
}

/// Token type table.
const TYPES: &str = "embeddings.token_type_embeddings.weight";
/// ERNIE's task type table.
const TASK_TYPES: &str = "embeddings.task_type_embeddings.weight";
/// Name prefixes for heads that predict words, answers, or another model's words, and for towers that read images and
/// sound.
const OTHER_HEADS: [&str; 19] = [
    "audio_tower.",
    "cls.",
    "decoder.",
    "discriminator_predictions.",
    "embed_audio.",
    "embed_vision.",
    "generator_lm_head.",
    "generator_predictions.",
    "head.",
    "lm_head.",
    "lm_predictions.",
    "mask_predictions.",
    "predictions.",
    ANSWERS,
    "sop_classifier.",
    "vision_tower.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "vocab_transform.",
];
/// The prefix of a question-answering head, one of these.
pub const ANSWERS: &str = "qa_outputs.";
/// Frequencies, which are computed from the config.
const FREQUENCIES: &str = ".rotary_emb.inv_freq";

/// Whether inference ignores the weight with this name, given without body prefix: a pooler or a head other than the
/// model's own, a layer after the last one, or a position or type table that the family does not have.
fn is_unused(config: &EncoderConfig, heads: &OutputHeads, name: &str) -> bool {
    let begins = |names: &[&str]| names.iter().any(|head| name.starts_with(head));
    // GLiNER files contain nothing but the span model.
    let has_labels = config.head.is_some() || heads.has_scores() || heads.spans.is_some();
    let has_decoder = config.decoder.is_some();
    config.is_in_unused_layer(name)
        || config.details.is_unused_bottleneck(name)
        || config.decoder.as_ref().is_some_and(|decoder| decoder.layers.is_in_unused_layer(name))
        || name.starts_with("pooler.")
        || config.spans.iter().any(|span| span.rotary.is_some()) && name.ends_with(FREQUENCIES)
        || begins(&OTHER_HEADS) && !(has_decoder && name.starts_with("decoder."))
        // Records in old files, and the bias for words.
        || has_decoder && ["encoder.version", "decoder.version", "final_logits_bias"].contains(&name)
        || !has_labels && config.names.is_of_label_head(name)
        || config.types == 0 && name == TYPES
        || config.positions == Positions::None && name == "embeddings.position_embeddings.weight"
        || config.details.task_types == 0 && name == TASK_TYPES
}

/// The first parts of the names of heads that vectors do not need, such as `cls`.
pub fn unused_heads(config: &EncoderConfig, weights: &Weights) -> BTreeSet<String> {
    let is_head = |name: &&String| {
        config.names.is_of_label_head(name) || OTHER_HEADS.iter().any(|head| name.starts_with(head))
    };
    let first = |name: &String| name.split('.').next().unwrap_or_default().to_owned();
    weights.untaken().filter(is_head).map(first).collect()
}

pub struct Writer<'a> {
    pub config: &'a EncoderConfig,
    pub layers: Layers<'a>,
    /// Shared values for DeBERTa's layers; `None` in other families, and in models that ignore distances.
    tables: Option<DistanceTables>,
    /// Added to all layers' scores.
    bias: Value,
    pub ids: Value,
    /// 1 for tokens and 0 for padding.
    pub mask: Value,
}

impl Writer<'_> {
    /// Embeddings of the text; after the token `start`, without the text's last one, if it is given.
    pub fn embeddings(&mut self, start: Option<usize>) -> Result<Value> {
        let ids = &self.ids.clone();
        let EncoderConfig {
            vocabulary,
            types,
            positions,
            names,
            ..
        } = *self.config;
        let (layers, width) = (&mut self.layers, self.config.embedding_width());
        let words = layers.weights.take(names.words, &[vocabulary, width])?;
        let projection = self.config.details.projection;
        let of_words = projection.filter(|projection| projection.joined_words.is_some());
        let table_width = of_words.map_or(width, |_| layers.hidden);
        let type_table = match types {
            0 => None,
            _ => Some(layers.weights.take(TYPES, &[types, table_width])?),
        };
        // A single type is added to all tokens, and therefore to all positions, or to all words.
        let is_of_positions = types == 1 && positions != Positions::None;
        let single = type_table.filter(|_| types == 1 && !is_of_positions);
        let mut sum = match (self.config.details.word_scale, single) {
            (None, None) => layers.look_up(names.words, words, ids),
            (scale, single) => {
                let scale = scale.unwrap_or(1.0);
                let mut values: Vec<f32> = words.values.iter().map(|value| value * scale).collect();
                for row in values.chunks_exact_mut(width) {
                    let single = single.iter().flat_map(|single| &single.values);
                    row.iter_mut()
                        .zip(single)
                        .for_each(|(word, single)| *word += single);
                }
                layers.look_up(
                    names.words,
                    &Weight {
                        shape: words.shape.clone(),
                        values,
                    },
                    ids,
                )
            }
        };
        if self.config.tasks.is_some() {
            let module = names.words.trim_end_matches(".weight");
            sum = layers.adapt_lookup(sum, module, ids, [vocabulary, width])?;
            sum = layers.adapt_type(sum, TYPES.trim_end_matches(".weight"), width)?;
        }
        if let Some(projection) = of_words {
            sum = layers.project_words(&sum, &self.mask, projection)?;
        }
        let start = start.map(|start| words.values[start * width..][..width].to_vec());
        if start.is_some() {
            sum = layers
                .graph
                .function("PreviousRow", [&sum, &self.mask], functions::previous_row);
        }
        if let Some(table) = type_table.filter(|_| types > 1) {
            let table = layers
                .graph
                .floats("token_types", &table.shape, &table.values);
            let type_ids = layers.graph.input("token_type_ids", &["batch", "sequence"]);
            let types = layers.graph.gather(&table, &type_ids);
            sum = layers.graph.add(&sum, &types);
        }
        if positions != Positions::None {
            let PositionTable { name, unused } = self.config.details.position_table;
            let mut table = layers
                .weights
                .take(name, &[self.config.position_rows(), table_width])?
                .clone();
            table.values.drain(..unused * table_width);
            table.shape[0] -= unused;
            // Shifted texts have zeros in place of the first word.
            let scale = self.config.details.word_scale.unwrap_or(1.0);
            let first = table.values.iter_mut().zip(start.iter().flatten());
            first.for_each(|(position, word)| *position += word * scale);
            // So is the first task type.
            let task_types = match self.config.details.task_types {
                0 => None,
                rows => Some(layers.weights.take(TASK_TYPES, &[rows, table_width])?),
            };
            for shared in type_table
                .filter(|_| is_of_positions)
                .into_iter()
                .chain(task_types)
            {
                for row in table.values.chunks_exact_mut(table_width) {
                    row.iter_mut()
                        .zip(&shared.values)
                        .for_each(|(position, shared)| *position += shared);
                }
            }
            let positions_name = match start {
                None => "positions",
                Some(_) => "positions_after_start",
            };
            let table = layers
                .graph
                .floats(positions_name, &table.shape, &table.values);
            let padding = match positions {
                Positions::TableAfter { padding } => Some(padding),
                Positions::Table | Positions::None => None,
            };
            let positions = layers.positions(&table, ids, padding);
            sum = layers.graph.add(&sum, &positions);
        }
        let projection = projection.filter(|projection| projection.joined_words.is_none());
        let is_normalized_before =
            projection.is_some_and(|projection| projection.is_normalized_before);
        if let Some(name) = names.embedding_norm.filter(|_| is_normalized_before) {
            sum = layers.normalize_rows(&sum, name, width)?;
        }
        if let Some(EmbeddingProjection { name, has_bias, .. }) = projection {
            let projection = Projection {
                name: name.to_owned(),
                outputs: self.config.layer_width(),
                has_bias,
            };
            sum = layers.project_by_token(&[projection], &sum, width)?;
        }
        if let Some(name) = names.embedding_norm.filter(|_| !is_normalized_before) {
            sum = layers.normalize(&sum, name)?;
        }
        Ok(sum)
    }

    /// Writes all layers, for models that normalize after each residual connection (post-norm).
    ///
    /// A head that reads the first token needs no other vectors from the last layer, which computes only that one.
    fn with_norms_after(&mut self, embedded: &Value) -> Result<Value> {
        let mut hidden = embedded.clone();
        for layer in 0..self.config.layers {
            let convolution = self.config.convolution().filter(|_| layer == 0);
            let is_first_only = self.reads_first_only() && layer + 1 == self.config.layers;
            let attending = if is_first_only {
                self.layers.first_token(&hidden)
            } else {
                hidden.clone()
            };
            hidden = self.layer_with_norms_after(layer, &attending, &hidden)?;
            if let Some(convolution) = convolution {
                let inputs = [embedded, &hidden, &self.mask];
                hidden = convolve(&mut self.layers, convolution, inputs)?;
            }
        }
        Ok(hidden)
    }

    /// Whether the last layer can leave out all tokens but the first.
    fn reads_first_only(&self) -> bool {
        let head = self
            .config
            .head
            .as_ref()
            .filter(|head| head.kind == HeadKind::Text);
        let has_one_row = head.is_some() && self.config.head_input.read == HeadRead::First;
        // The convolution, after the first layer, needs all tokens.
        let is_convolved = self.config.layers == 1 && self.config.convolution().is_some();
        let is_norm_after = matches!(self.config.names.norms, Norms::After { .. });
        // Queries apart from keys and values would be a second copy of weights that other layers use joined.
        let has_own_weights = self.config.details.bottlenecks.is_none()
            && self.config.details.sharing.is_none()
            && self.config.names.projections.len() > 1;
        has_one_row
            && is_norm_after
            && has_own_weights
            && !is_convolved
            && self.bias == Value::none()
            && !self.config.attends_by_position()
    }

    /// Writes one layer: the tokens in `attending` (all tokens in `input`, or the first) attend to `input`.
    fn layer_with_norms_after(
        &mut self,
        layer: usize,
        attending: &Value,
        input: &Value,
    ) -> Result<Value> {
        let config = self.config;
        if let Some(layers) = config.details.bottlenecks {
            return self.layer_with_bottlenecks(layer, layers, input);
        }
        let Norms::After { attention, output } = &config.names.norms else {
            unreachable!("the caller matched")
        };
        let at = |name: &str| config.name_in_layer(layer, name);
        let mut attended = self.attention(layer, attending, input)?;
        for name in attention {
            attended = self.layers.add_and_norm(&attended, attending, &at(name))?;
        }
        let lowered = self.feed_forward(layer, &attended)?;
        self.layers.add_and_norm(&lowered, &attended, &at(output))
    }

    /// Writes all layers and the final normalization, for models that normalize each sublayer's input (pre-norm).
    fn with_norms_before(&mut self, embedded: &Value) -> Result<Value> {
        let config = self.config;
        let Norms::Before {
            attention,
            feed_forward,
            after,
            last,
            is_first_normal,
        } = &config.names.norms
        else {
            unreachable!("the caller matched")
        };
        let at = |layer: usize, name: &str| config.name_in_layer(layer, name);
        let mut sum = embedded.clone();
        let mut input = match is_first_normal {
            true => self.layers.normalize(&sum, &at(0, attention))?,
            false => sum.clone(),
        };
        for layer in 0..self.config.layers {
            let mut attended = self.attention(layer, &input, &input)?;
            if let Some([name, _]) = after {
                attended = self.layers.normalize(&attended, &at(layer, name))?;
            }
            [input, sum] =
                self.layers
                    .add_norm_and_sum(&attended, &sum, &at(layer, feed_forward))?;
            let mut lowered = self.feed_forward(layer, &input)?;
            if let Some([_, name]) = after {
                lowered = self.layers.normalize(&lowered, &at(layer, name))?;
            }
            if let Some(signals) = config.details.layer_signals {
                sum = self.with_signal(layer, signals, [embedded, &lowered, &sum])?;
                if layer + 1 < config.layers {
                    input = self.layers.normalize(&sum, &at(layer + 1, attention))?;
                }
                continue;
            }
            if layer + 1 == self.config.layers {
                return self.layers.add_and_norm(&lowered, &sum, last);
            }
            [input, sum] =
                self.layers
                    .add_norm_and_sum(&lowered, &sum, &at(layer + 1, attention))?;
        }
        self.layers.normalize(&sum, last)
    }

    /// Attention from the tokens in `attending` (all tokens in `input`, or the first) to `input`.
    pub fn attention(&mut self, layer: usize, attending: &Value, input: &Value) -> Result<Value> {
        let config = self.config;
        if let Some(convolutions) = &config.convolutions
            && convolutions.layers.contains(&layer)
        {
            return self.convolve(layer, input, convolutions.form);
        }
        let (names, hidden) = (config.names, config.layer_width());
        let Heads {
            queries,
            keys,
            width,
        } = config.heads(layer);
        let projections = config.projections(layer);
        let is_first_only = attending != input;
        let [query, key, value] = match &projections[..] {
            [of_query, others @ ..] if is_first_only && !others.is_empty() => {
                let projected = self.project_attention(others, input, hidden)?;
                let [key, value] = self.layers.graph.split(&projected);
                [
                    self.project_attention(std::slice::from_ref(of_query), attending, hidden)?,
                    key,
                    value,
                ]
            }
            _ => {
                let projected = self.project_attention(&projections, input, hidden)?;
                match queries == keys {
                    true => self.layers.graph.split(&projected),
                    false => {
                        let parts = [queries * width, keys * width, keys * width];
                        self.layers.graph.split_into(&projected, parts)
                    }
                }
            }
        };
        let (query, key) = self.prepare(layer, query, key)?;
        let value = match config.details.value_norm {
            Some(name) => {
                let name = config.name_in_layer(layer, name);
                self.layers.normalize_heads(&value, &name, [keys, width])?
            }
            None => value,
        };
        let parts = [&query, &key, &value];
        let context = if let Some(tables) = &self.tables {
            let name = config.name_in_layer(layer, "attention.self");
            let inputs = [&query, &key, &value, &self.mask, &self.ids];
            tables.attend(&mut self.layers, &name, inputs)?
        } else if config.attends_by_position() {
            self.attend_by_position(layer, parts)?
        } else {
            self.attend_at_once(parts)
        };
        let output = config.in_layer(
            layer,
            names.attention_output,
            hidden,
            config.biases.attention_output,
        );
        self.project_attention(&[output], &context, queries * width)
    }

    /// Attention's linear layers.
    fn project_attention(
        &mut self,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        let keeps = self.config.details.keeps_attention;
        if keeps && self.layers.precision == Precision::Int8Blocks {
            self.layers.project_in_fp32(projections, input, inputs)
        } else {
            self.project(projections, input, inputs)
        }
    }

    /// Normalizes queries and keys, where the family does.
    fn prepare(&mut self, layer: usize, query: Value, key: Value) -> Result<(Value, Value)> {
        let config = self.config;
        let Heads {
            queries,
            keys,
            width,
        } = config.heads(layer);
        let mut parts = [(query, queries), (key, keys)];
        if let Some(names) = config.names.query_key_norms {
            for ((value, heads), name) in parts.iter_mut().zip(names) {
                let name = config.name_in_layer(layer, name);
                *value = match config.details.norms_each_head {
                    true => self.layers.normalize_heads(value, &name, [*heads, width])?,
                    false => self.layers.normalize_rows(value, &name, *heads * width)?,
                };
            }
        }
        let [(query, _), (key, _)] = parts;
        Ok((query, key))
    }

    /// Position-dependent attention, as a function that the native engine executes by name.
    fn attend_by_position(
        &mut self,
        layer: usize,
        [query, key, value]: [&Value; 3],
    ) -> Result<Value> {
        let attention = self.config.attention(layer);
        let sinks = match self.config.details.sinks {
            Some(name) => {
                let name = self.config.name_in_layer(layer, name);
                Some(self.layers.constant(&name, &[attention.heads])?)
            }
            None => None,
        };
        let place = layer % self.config.spans.len();
        let rotary = self.config.spans[place].rotary.as_ref();
        let graph = &mut self.layers.graph;
        // A negative number means all tokens.
        let side = |tokens: Option<usize>| tokens.map_or(-1, |tokens| tokens as i64);
        let AttentionWindow { before, after } = attention.window;
        let shape = [
            attention.heads as i64,
            attention.key_heads as i64,
            side(before),
            side(after),
        ];
        let shape = graph.integers(&format!("attention_{place}"), &shape);
        let scale = graph.scalar("attention_scale", attention.scale);
        let frequencies = rotary.map_or(Value::none(), |rotary| rotary.constant(graph));
        let rotation = rotary.map_or(Value::none(), |rotary| rotary.parameters(graph));
        let cap = attention
            .cap
            .map_or(Value::none(), |cap| graph.scalar("attention_cap", cap));
        let slopes = match attention.distance {
            Distance::Ignored => Value::none(),
            Distance::Alibi => {
                graph.floats("slopes", &[attention.heads], &alibi_slopes(attention.heads))
            }
        };
        let none = Value::none();
        let growth = rotary
            .and_then(|rotary| rotary.growth)
            .map(|growth| growth.parameters(graph));
        let mut inputs = vec![query, key, value, &self.mask, &self.ids, &shape, &scale];
        inputs.extend([&frequencies, &slopes, &rotation, &cap]);
        if let Some(growth) = &growth {
            inputs.extend([sinks.as_ref().unwrap_or(&none), growth]);
        } else {
            inputs.extend(&sinks);
        }
        let name = format!("Attention{place}");
        Ok(graph.function_of(&name, &inputs, |graph, inputs| {
            let [query, key, value, mask, ids, ..] = *inputs else {
                unreachable!("listed above")
            };
            let parts = [query, key, value, mask, ids];
            let sinks = sinks.as_ref().and_then(|_| inputs.get(11).copied());
            attend_by_position(graph, &attention, rotary, parts, sinks)
        }))
    }

    /// Attention in which positions have no effect but a bias that all layers share.
    pub fn attend_at_once(&mut self, [query, key, value]: [&Value; 3]) -> Value {
        let none = Value::none();
        let mut inputs = vec![query, key, value, &none, &self.mask];
        if self.bias != none {
            inputs.push(&self.bias);
        }
        let mut attributes = attention(self.config.heads.queries);
        let scale = self.config.scale_at_once();
        attributes.extend(scale.map(|scale| float("scale", scale)));
        let graph = &mut self.layers.graph;
        graph.microsoft("MultiHeadAttention", &inputs, attributes)
    }

    pub fn feed_forward(&mut self, layer: usize, input: &Value) -> Result<Value> {
        let config = self.config;
        let (hidden, part) = (config.layer_width(), config.feed_forward);
        if let Some(ExpertLayers {
            every,
            count,
            top,
            name,
            kind,
        }) = config.details.experts
            && (every == 1 || layer % every == 1)
        {
            let experts = Experts {
                count,
                top,
                width: part.width,
                kind,
            };
            return self
                .layers
                .experts(&config.name_in_layer(layer, name), input, hidden, experts);
        }
        self.dense_feed_forward(layer, "", input, hidden)
    }

    /// A feed-forward part without experts, whose weights' names begin with `prefix`, on rows with `width` values.
    pub fn dense_feed_forward(
        &mut self,
        layer: usize,
        prefix: &str,
        input: &Value,
        width: usize,
    ) -> Result<Value> {
        let (config, part) = (self.config, self.config.feed_forward);
        let raised = self.project(&config.up(layer, prefix), input, width)?;
        let raised = match part.gate {
            Gate::None => self.layers.activate(part.activation, &raised),
            Gate::First | Gate::Second => {
                let halves: [Value; 2] = self.layers.graph.split(&raised);
                let place = usize::from(part.gate == Gate::Second);
                let activated = self.layers.activate(part.activation, &halves[place]);
                self.layers.graph.mul(&activated, &halves[1 - place])
            }
        };
        let down = format!("{prefix}{}", config.names.down);
        let down = config.in_layer(layer, &down, width, config.biases.down);
        self.project(&[down], &raised, part.width)
    }

    /// Linear layers, with a scale per token in int8.
    pub fn project(
        &mut self,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        match self.config.scales_each_token() {
            true => self.layers.project_by_token(projections, input, inputs),
            false => self.layers.project(projections, input, inputs),
        }
    }

    /// Label logits. Computed in fp32 at all precisions, since a head is small and its errors go straight into the
    /// scores.
    fn head(&mut self, head: &Head, tokens: &Value) -> Result<Value> {
        if head.kind == HeadKind::Tokens {
            return self.token_head(head, tokens);
        }
        let is_first_only = self.reads_first_only();
        if self.config.head_input.read == HeadRead::MeanOfActivated {
            let activated = self.before_labels(tokens)?;
            let mean = self.mean(&activated);
            return self.label(self.config.names.labels, head, &mean);
        }
        let layers = &mut self.layers;
        let one = layers.graph.one();
        let read = match self.config.head_input.read {
            HeadRead::Mean | HeadRead::MeanOfActivated => self.mean(tokens),
            HeadRead::Last => layers.graph.function(
                "LastOfTokens",
                [tokens, &self.mask],
                functions::last_of_tokens,
            ),
            HeadRead::First => {
                let first = if is_first_only {
                    tokens.clone()
                } else {
                    layers.first_token(tokens)
                };
                layers.graph.squeeze(&first, &one)
            }
        };
        let pooled = self.before_labels(&read)?;
        self.label(self.config.names.labels, head, &pooled)
    }

    fn mean(&mut self, tokens: &Value) -> Value {
        let inputs = [tokens, &self.mask];
        self.layers
            .graph
            .function("MeanOfTokens", inputs, functions::mean_of_tokens)
    }

    /// Logits per token. Only families that normalize the layer before the labels keep it.
    fn token_head(&mut self, head: &Head, tokens: &Value) -> Result<Value> {
        let names = self.config.names;
        let read = match names.dense_norm {
            Some(_) => self.before_labels(tokens)?,
            None => tokens.clone(),
        };
        self.label(names.label_layer(HeadKind::Tokens), head, &read)
    }

    /// Head layers before the labels.
    fn before_labels(&mut self, read: &Value) -> Result<Value> {
        let EncoderConfig {
            names, head_input, ..
        } = *self.config;
        let (layers, hidden) = (&mut self.layers, self.config.encoder_limits.hidden);
        let (dense, is_of_body) = names.dense;
        if dense.is_empty() {
            return Ok(read.clone());
        }
        let prefix = if is_of_body {
            layers.weights.prefix.as_str()
        } else {
            ""
        };
        let [weight, bias] = ["weight", "bias"].map(|part| format!("{prefix}{dense}.{part}"));
        let bias = head_input.has_bias.then_some(&*bias);
        let read = layers.linear_in_fp32(&weight, bias, read, [hidden, hidden])?;
        let read = layers.activate(head_input.activation, &read);
        match names.dense_norm {
            Some(name) => layers.normalize_whole(&read, name, hidden),
            None => Ok(read),
        }
    }

    /// The layer called `name`, with an output per label.
    fn label(&mut self, name: &str, head: &Head, read: &Value) -> Result<Value> {
        let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
        let shape = [self.config.encoder_limits.hidden, head.labels.len()];
        self.layers
            .linear_in_fp32(&weight, Some(&bias), read, shape)
    }
}
