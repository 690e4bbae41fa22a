//! A model that is ready to run: its program, and the tensors that it takes and returns.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;

use kivu_engine::{
    kernel::InstructionSet,
    program::{Linear, Per, Program, Value, ValueId},
    run::{Scratch, Text, Token, Values},
};

use super::{
    graph::{self, MULTI_VECTORS, WORDS},
    weights::{self, Buffer},
};
use crate::backend::{LABEL_VECTORS, MappedFiles, Signature, TASK_IDS, require_unchanged};
use kivu_base::{
    error::{Error, Result},
    onnx_proto::ModelProto,
    tensor::{Elements, Tensor},
};

/// One text's rows per output.
pub type TextOutputs = Vec<Vec<f32>>;

/// The weight files of one or several graphs.
#[derive(Clone, Debug, Default)]
pub struct WeightFiles {
    /// Contents by the file name that graphs refer to.
    pub files: BTreeMap<String, Bytes>,
    /// Mapped files; runs fail once one was written to.
    pub mapped: Option<Arc<dyn MappedFiles>>,
}

impl WeightFiles {
    /// File names that `graph` refers to.
    pub fn names(graph: &[u8]) -> Result<BTreeSet<String>> {
        let model = ModelProto::from_bytes(graph)?;
        let tensors = model.graph.iter().flat_map(|graph| &graph.initializer);
        let entries = tensors.flat_map(|tensor| &tensor.external_data);
        Ok(entries
            .filter(|entry| entry.key == "location")
            .map(|entry| entry.value.clone())
            .collect())
    }

    /// Files in memory.
    pub fn in_memory(files: BTreeMap<String, Bytes>) -> Self {
        Self {
            files,
            mapped: None,
        }
    }

    /// Maps files. Runs fail once a file in `mapped` was written to; `None` for files that do not change.
    pub fn map(
        files: impl IntoIterator<Item = (String, PathBuf)>,
        mapped: Option<Arc<dyn MappedFiles>>,
    ) -> Result<Self> {
        let files = files
            .into_iter()
            .map(|(name, path)| Ok((name, weights::map(&path)?)));
        Ok(Self {
            files: files.collect::<Result<_>>()?,
            mapped,
        })
    }

    /// Adds a file in memory.
    pub fn insert(&mut self, name: &str, contents: Buffer) -> Result<()> {
        self.files.insert(name.to_owned(), contents.finish()?);
        Ok(())
    }
}

/// A model that is ready to run, on any number of threads.
#[derive(Debug)]
pub struct NativeModel {
    signature: Signature,
    /// The graph as stages that run in order.
    pub program: Program,
    token_products: usize,
    /// The kernel that runs the program.
    pub instructions: InstructionSet,
    mapped: Option<Arc<dyn MappedFiles>>,
}

impl NativeModel {
    /// Reads `graph`, with its weights in `files`.
    ///
    /// Refuses graphs that the engine does not support; the error names the unsupported part.
    pub fn open(graph: &[u8], files: WeightFiles) -> Result<Self> {
        let model = ModelProto::from_bytes(graph)?;
        let graph = model
            .graph
            .ok_or_else(|| Error::model("expected a graph in the ONNX file, but found none"))?;
        let program = graph::read(&graph, &files.files)?;
        Ok(Self {
            signature: graph::signature(&graph)?,
            token_products: program.token_products(),
            program,
            instructions: InstructionSet::current(),
            mapped: files.mapped,
        })
    }

    /// A model without inputs and outputs.
    #[cfg(test)]
    pub fn of(program: Program) -> Self {
        let signature = Signature {
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let (token_products, instructions) = (program.token_products(), InstructionSet::current());
        Self {
            signature,
            program,
            token_products,
            instructions,
            mapped: None,
        }
    }

    /// Graph inputs and outputs.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Multiplications for a token in linear layers.
    pub fn token_products(&self) -> usize {
        self.token_products
    }

    /// Runs one batch on this thread. Inputs and outputs are in signature order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.execute(inputs, Scratch::default())
    }

    /// Like [`run`](Self::run); passes the names, input counts and input rows of int8 layers over tokens to `observe`.
    pub fn observe(
        &self,
        inputs: &[Tensor],
        mut observe: impl FnMut(&str, usize, &[f32]) + Send + 'static,
    ) -> Result<Vec<Tensor>> {
        let observe = move |layer: &Linear, rows: &[f32]| observe(&layer.name, layer.inputs, rows);
        self.execute(inputs, Scratch::with_observer(observe))
    }

    fn execute(&self, inputs: &[Tensor], mut scratch: Scratch) -> Result<Vec<Tensor>> {
        let texts = self.texts(inputs)?;
        let run = self
            .program
            .pack(texts.iter(), NonZeroUsize::MIN, Values::new());
        for stage in &self.program.stages {
            for task in 0..run.tasks(stage) {
                run.execute(&self.program, self.instructions, stage, task, &mut scratch);
            }
        }
        let mut outputs = (0..texts.len()).map(|text| run.outputs(&self.program, text));
        self.outputs(inputs, &mut outputs)
    }

    /// Memory for running one text with `tokens` tokens, in bytes, its output included.
    pub fn text_bytes(&self, tokens: usize, threads: NonZeroUsize) -> u64 {
        let numbers = |output: &ValueId| {
            let Value { width, per, .. } = self.program.values[*output];
            if per == Per::Token {
                tokens * width
            } else {
                width
            }
        };
        let outputs: usize = self.program.outputs.iter().map(numbers).sum();
        // The text's rows, and their copy in the output tensor.
        (self.program.bytes(tokens, threads) + 2 * outputs * size_of::<f32>()) as u64
    }

    /// Fails if mapped weights were written to.
    pub fn require_unchanged(&self) -> Result<()> {
        require_unchanged(self.mapped.as_deref())
    }

    /// Tokens per batch row.
    pub fn texts(&self, inputs: &[Tensor]) -> Result<Vec<Text>> {
        self.signature.check_inputs(inputs)?;
        let shape = inputs.first().map(Tensor::shape).unwrap_or_default();
        let labels = self.place(LABEL_VECTORS);
        let mut of_tokens = inputs
            .iter()
            .enumerate()
            .filter(|(place, _)| Some(*place) != labels);
        if let Some((_, other)) = of_tokens.find(|(_, input)| input.shape() != shape) {
            return Err(Error::invalid(format!(
                "expected inputs of the same shape, but found {shape:?} and {:?}",
                other.shape()
            )));
        }
        let [ids, types, mask, words, tasks] = graph::INPUTS.map(|name| self.input(inputs, name));
        let types = types.or(words).or(tasks);
        let ids =
            ids.ok_or_else(|| Error::invalid("expected the input `input_ids`, but found none"))?;
        let &[rows, columns] = shape else {
            return Err(Error::invalid("expected inputs with two axes"));
        };
        if rows > 0 && columns == 0 {
            return Err(Error::inference(
                "expected texts of at least one token, but found texts without tokens",
            ));
        }
        let labels = self.labels(inputs, rows)?;
        let row = |row: usize| {
            let part = row * columns..(row + 1) * columns;
            let [types, mask] =
                [types, mask].map(|values| values.map(|values| &values[part.clone()]));
            let labels = labels
                .as_ref()
                .map(|labels| Arc::clone(&labels[row]))
                .unwrap_or_default();
            Ok(Text {
                labels,
                ..self.tokens(&ids[part], types, mask)?
            })
        };
        (0..rows).map(row).collect()
    }

    /// Label vectors per row, if the model takes them.
    fn labels(&self, inputs: &[Tensor], rows: usize) -> Result<Option<Vec<Arc<[f32]>>>> {
        let Some(input) = self
            .place(LABEL_VECTORS)
            .and_then(|place| inputs.get(place))
        else {
            return Ok(None);
        };
        match (input.shape(), input.as_fp32()) {
            (&[found, labels, width], Some(values)) if found == rows => {
                let size = labels * width;
                Ok(Some(
                    (0..rows)
                        .map(|row| Arc::from(&values[row * size..][..size]))
                        .collect(),
                ))
            }
            (shape, _) => Err(Error::invalid(format!(
                "expected vectors of labels for {rows} texts in `{LABEL_VECTORS}`, but found shape {shape:?}"
            ))),
        }
    }

    /// The index of the input `name`, if the model has it.
    fn place(&self, name: &str) -> Option<usize> {
        self.signature
            .inputs
            .iter()
            .position(|input| input.name == name)
    }

    /// A text's tokens from its ids, types and mask. Masked tokens are dropped, since no other token attends to them; a
    /// model with [`MULTI_VECTORS`] keeps masked tokens after the last unmasked one.
    ///
    /// Refuses tokens outside the model's tables.
    fn tokens(&self, ids: &[i64], types: Option<&[i64]>, mask: Option<&[i64]>) -> Result<Text> {
        let limits = &self.program.limits;
        let within = |name: &str, limit: usize, found: i64| match u32::try_from(found) {
            Ok(number) if (number as usize) < limit => Ok(number),
            _ => Err(Error::invalid(format!(
                "expected {name} from 0 to {}, but found {found}",
                limit.saturating_sub(1)
            ))),
        };
        let has = |name: &str| self.signature.inputs.iter().any(|input| input.name == name);
        let (types_name, type_limit) = match () {
            () if has(WORDS) => ("words", ids.len() + 1),
            () if has(TASK_IDS) => ("tasks", limits.types),
            () => ("token types", limits.types),
        };
        let (mut count, mut attended) = (0, 0);
        let mut tokens = Vec::with_capacity(ids.len());
        let end = mask.map_or(ids.len(), |mask| self.end(mask));
        for (index, id) in ids.iter().enumerate() {
            let id = within("token ids", limits.ids, *id)?;
            let position = match self.program.padding {
                None => index as i64,
                Some(padding) if padding == id => i64::from(padding),
                Some(padding) => {
                    count += 1;
                    i64::from(padding) + count
                }
            };
            let is_attended = mask.is_none_or(|mask| mask[index] != 0);
            if !is_attended && index < end {
                continue;
            }
            attended += usize::from(is_attended);
            let type_id = within(
                types_name,
                type_limit,
                types.map_or(0, |types| types[index]),
            )?;
            let position = within("positions", limits.positions, position)?;
            tokens.push(Token {
                id,
                type_id,
                position,
            });
        }
        if tokens.len() > limits.length {
            return Err(Error::invalid(format!(
                "expected at most {} tokens, but found {}",
                limits.length,
                tokens.len()
            )));
        }
        Ok(Text {
            tokens,
            attended,
            labels: Arc::default(),
        })
    }

    /// Token count up to the last unmasked token, after which masked tokens get vectors too. Equals the mask length if
    /// all tokens are masked, or if the model has no [`MULTI_VECTORS`].
    fn end(&self, mask: &[i64]) -> usize {
        let last = mask.iter().rposition(|mask| *mask != 0);
        let has_masked = self.signature.output(MULTI_VECTORS).is_some();
        last.filter(|_| has_masked)
            .map_or(mask.len(), |last| last + 1)
    }

    /// Joins row outputs into batch outputs. Vectors for dropped tokens are zeros.
    pub fn outputs(
        &self,
        inputs: &[Tensor],
        outputs: &mut impl Iterator<Item = TextOutputs>,
    ) -> Result<Vec<Tensor>> {
        let rows = inputs
            .first()
            .and_then(|input| input.shape().first().copied())
            .unwrap_or(0);
        let rows: Vec<TextOutputs> = outputs.take(rows).collect();
        let values = self.program.outputs.iter().enumerate();
        values
            .map(|(place, value)| self.output(inputs, place, *value, &rows))
            .collect()
    }

    fn output(
        &self,
        inputs: &[Tensor],
        place: usize,
        value: ValueId,
        outputs: &[TextOutputs],
    ) -> Result<Tensor> {
        let shape = inputs.first().map(Tensor::shape).unwrap_or_default();
        let &[rows, columns] = shape else {
            return Err(Error::invalid("expected inputs with two axes"));
        };
        if self.program.spans(value).is_some() {
            let width = self.program.values[value].width;
            return self.span_scores(
                inputs,
                width,
                outputs.iter().map(|outputs| &outputs[place][..]),
            );
        }
        let value = self.program.values[value];
        let (width, has_tokens) = (value.width, value.per == Per::Token);
        let mask = self.input(inputs, "attention_mask");
        let mut values = Vec::with_capacity(rows * width * if has_tokens { columns } else { 1 });
        for (row, output) in outputs.iter().map(|outputs| &outputs[place]).enumerate() {
            let mask = mask.map(|mask| &mask[row * columns..][..columns]);
            match mask.filter(|mask| has_tokens && mask.contains(&0)) {
                None => values.extend(output),
                Some(mask) => {
                    let mut vectors = output.chunks_exact(width).peekable();
                    let end = self.end(mask);
                    for (index, is_token) in mask.iter().enumerate() {
                        match vectors.next_if(|_| *is_token != 0 || index >= end) {
                            Some(vector) => values.extend(vector),
                            None => values.resize(values.len() + width, 0.0),
                        }
                    }
                }
            }
        }
        let shape = if has_tokens {
            vec![rows, columns, width]
        } else {
            vec![rows, width]
        };
        Tensor::new(shape, Elements::Fp32(values))
    }

    /// Joins texts' scores, `width` per word and label, into a batch; zeros where a text has fewer words or labels.
    fn span_scores<'a>(
        &self,
        inputs: &[Tensor],
        width: usize,
        outputs: impl Iterator<Item = &'a [f32]>,
    ) -> Result<Tensor> {
        let columns = inputs
            .first()
            .and_then(|input| input.shape().last().copied())
            .unwrap_or(0)
            .max(1);
        let [words, mask] = [WORDS, "attention_mask"].map(|name| self.input(inputs, name));
        let words = words
            .unwrap_or_default()
            .chunks_exact(columns)
            .enumerate()
            .map(|(row, words)| {
                let mask = mask.map(|mask| &mask[row * columns..][..columns]);
                let is_token = |index: usize| mask.is_none_or(|mask| mask[index] != 0);
                let words = words
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| is_token(*index));
                words.map(|(_, word)| *word as usize).max().unwrap_or(0)
            });
        // Words, labels and scores of each text.
        let texts: Vec<(usize, usize, &[f32])> = words
            .zip(outputs)
            .map(|(words, scores)| (words, scores.len() / (words * width).max(1), scores))
            .collect();
        let most_words = texts.iter().map(|(words, ..)| *words).max().unwrap_or(0);
        let most_labels = texts
            .iter()
            .map(|(_, labels, _)| *labels)
            .max()
            .unwrap_or(0);
        let mut values = vec![0.0; texts.len() * most_words * most_labels * width];
        for (text, (_, labels, scores)) in texts
            .iter()
            .enumerate()
            .filter(|(_, (_, labels, _))| *labels > 0)
        {
            for (word, scores) in scores.chunks_exact(labels * width).enumerate() {
                let start = (text * most_words + word) * most_labels * width;
                values[start..start + scores.len()].copy_from_slice(scores);
            }
        }
        Tensor::new(
            vec![texts.len(), most_words, most_labels, width],
            Elements::Fp32(values),
        )
    }

    /// The input `name`, if the model has it.
    fn input<'a>(&self, inputs: &'a [Tensor], name: &str) -> Option<&'a [i64]> {
        match inputs.get(self.place(name)?)?.elements() {
            Elements::Int64(values) => Some(values),
            _ => None,
        }
    }
}
