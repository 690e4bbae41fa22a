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
use kivu_text::Encoding;

use super::{
    graph::{self, MULTI_VECTORS, WORDS},
    weights::{self, Buffer},
};
use crate::backend::{
    MappedFiles, Signature, TASK_IDS,
    encoder::{Row, Sequence},
    require_unchanged,
};
use kivu_base::{Error, Result, onnx_proto::ModelProto};

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

/// The token types that a model reads beside token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenTypes {
    Nothing,
    /// The index of their text in a pair.
    Texts,
    /// The number of the word that begins there.
    Words,
    /// The number of their text's task.
    Tasks,
}

impl TokenTypes {
    fn of(signature: &Signature) -> Self {
        let has = |name: &str| signature.inputs.iter().any(|input| input.name == name);
        match () {
            () if has(WORDS) => Self::Words,
            () if has(TASK_IDS) => Self::Tasks,
            () if has("token_type_ids") => Self::Texts,
            () => Self::Nothing,
        }
    }
}

/// A model that is ready to run, on any number of threads.
#[derive(Debug)]
pub struct NativeModel {
    signature: Signature,
    /// The graph as stages that run in order.
    pub program: Program,
    types: TokenTypes,
    token_products: usize,
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
        let signature = graph::signature(&graph)?;
        Ok(Self {
            types: TokenTypes::of(&signature),
            signature,
            token_products: program.token_products(),
            program,
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
        let token_products = program.token_products();
        Self {
            signature,
            types: TokenTypes::Nothing,
            program,
            token_products,
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

    /// Runs one text on this thread.
    pub fn run(&self, sequence: Sequence<'_>) -> Result<TextOutputs> {
        self.execute(sequence, Scratch::default())
    }

    /// Like [`run`](Self::run); passes the names, input counts and input rows of int8 layers over tokens to `observe`.
    pub fn observe(
        &self,
        sequence: Sequence<'_>,
        mut observe: impl FnMut(&str, usize, &[f32]) + Send + 'static,
    ) -> Result<TextOutputs> {
        let observe = move |layer: &Linear, rows: &[f32]| observe(&layer.name, layer.inputs, rows);
        self.execute(sequence, Scratch::with_observer(observe))
    }

    fn execute(&self, sequence: Sequence<'_>, mut scratch: Scratch) -> Result<TextOutputs> {
        let text = self.text(sequence)?;
        let run = self
            .program
            .pack([&text].into_iter(), NonZeroUsize::MIN, Values::new());
        let instructions = InstructionSet::current();
        for stage in &self.program.stages {
            for task in 0..run.tasks(stage) {
                run.execute(&self.program, instructions, stage, task, &mut scratch);
            }
        }
        Ok(run.outputs(&self.program, 0))
    }

    /// Memory for running one text with `tokens` tokens, in bytes, the tokens and their output included.
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
        let text = tokens * size_of::<Token>() + outputs * size_of::<f32>();
        (self.program.bytes(tokens, threads) + text) as u64
    }

    /// Fails if mapped weights were written to.
    pub fn require_unchanged(&self) -> Result<()> {
        require_unchanged(self.mapped.as_deref())
    }

    /// A text's tokens, without those at the end that no other token attends to, unless the model has
    /// [`MULTI_VECTORS`].
    ///
    /// Refuses texts without tokens, tokens outside the model's tables, and more tokens than the model takes.
    pub fn text(
        &self,
        Sequence {
            encoding, labels, ..
        }: Sequence<'_>,
    ) -> Result<Text> {
        let limits = &self.program.limits;
        let attended = encoding.len() - encoding.unattended;
        let count = match self.signature.output(MULTI_VECTORS) {
            Some(_) => encoding.len(),
            None => attended,
        };
        if attended == 0 {
            return Err(Error::inference("a text has no tokens"));
        }
        if count > limits.length {
            return Err(Error::invalid(format!(
                "expected at most {} tokens, but found {count}",
                limits.length
            )));
        }
        let within = |name: &str, limit: usize, found: u32| match (found as usize) < limit {
            true => Ok(found),
            false => Err(Error::invalid(format!(
                "expected {name} from 0 to {}, but found {found}",
                limit.saturating_sub(1)
            ))),
        };
        let type_of = |index: usize| encoding.type_ids.get(index).copied().unwrap_or(0);
        let type_id = |index: usize| match self.types {
            TokenTypes::Nothing => Ok(0),
            TokenTypes::Texts => within("token types", limits.types, type_of(index)),
            TokenTypes::Words => within("words", encoding.len() + 1, type_of(index)),
            TokenTypes::Tasks => within("tasks", limits.types, encoding.task),
        };
        let mut counted = 0;
        let token = |(index, id): (usize, &u32)| {
            let id = within("token ids", limits.ids, *id)?;
            let position = match self.program.padding {
                None => index as u32,
                Some(padding) if padding == id => padding,
                Some(padding) => {
                    counted += 1;
                    padding.saturating_add(counted)
                }
            };
            Ok(Token {
                id,
                type_id: type_id(index)?,
                position: within("positions", limits.positions, position)?,
            })
        };
        let mut tokens = Vec::with_capacity(count);
        for token in encoding.ids[..count].iter().enumerate().map(token) {
            tokens.push(token?);
        }
        Ok(Text {
            tokens,
            attended,
            labels: labels.map(Arc::clone).unwrap_or_default(),
        })
    }

    /// A text's rows for some of the outputs, by their indexes.
    pub fn rows<'a>(
        &self,
        encoding: &Encoding,
        outputs: &[usize],
        found: &'a TextOutputs,
    ) -> Vec<Row<'a>> {
        let row = |output: &usize| {
            let (value, values) = (self.program.outputs[*output], &found[*output][..]);
            let width = self.program.values[value].width;
            // Scores for each word and label.
            let columns = match self.program.spans(value) {
                None => 1,
                Some(_) => {
                    let words = encoding
                        .type_ids
                        .iter()
                        .max()
                        .map_or(0, |word| *word as usize);
                    values.len() / (words * width).max(1)
                }
            };
            Row {
                values,
                columns,
                width,
            }
        };
        outputs.iter().map(row).collect()
    }
}
