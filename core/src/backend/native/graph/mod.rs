//! Reads a program from an ONNX graph, as `kivu build` writes it.
//!
//! Supports some operators from ONNX and ONNX Runtime, and the model-local functions in the domain `kivu`, whose bodies
//! in the file have the same results: see `compiler/src/onnx/functions.rs`. A graph with other operators, or a different
//! arrangement, is refused with the first unsupported name; ONNX Runtime can run it.

mod attention;
mod constants;
mod rows;
mod spans;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use kivu_engine::{
    kernel::LANES,
    program::{
        Activation, Index, Limits, Lstm, Per, Pooling, Program, RowOperation, Table, Value,
        ValueId, View,
    },
    rotary::Rotary,
};

pub use self::constants::data;
use super::stages::{Operation, assign_slots, divide};
use crate::backend::{LABEL_VECTORS, Signature, TASK_IDS, TensorSpec};
use kivu_base::{
    Error, Result,
    onnx_proto::{AttributeProto, FUNCTIONS, GraphProto, MICROSOFT, NodeProto, TensorProto},
    tensor::ElementType,
};

/// Late-interaction output. In a model that has it, masked tokens after the last unmasked one get vectors
/// too: they pad queries.
pub const MULTI_VECTORS: &str = "multi_vectors";

/// Encoder inputs; a model has token types, or the word that begins with each token, or the number of each token's task.
pub const INPUTS: [&str; 5] = [
    "input_ids",
    "token_type_ids",
    "attention_mask",
    WORDS,
    TASK_IDS,
];
/// The number of the word that begins with each token, or 0.
pub const WORDS: &str = "words_mask";

/// A feed-forward part with experts.
#[derive(Clone, Copy)]
pub enum ExpertForm {
    /// Layers with GELU between them; a softmax over all experts, and a bias after their sum.
    Plain,
    /// Layers with a gate between them; a softmax over the chosen experts.
    Gated,
}

/// Reads the program in `graph`; `files` has the external weights by name.
pub fn read(graph: &GraphProto, files: &BTreeMap<String, Bytes>) -> Result<Program> {
    let constants = graph
        .initializer
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let mut reader = Reader {
        constants,
        files,
        meanings: HashMap::new(),
        values: Vec::new(),
        rotaries: Vec::new(),
        operations: Vec::new(),
        limits: Limits {
            ids: usize::MAX,
            types: usize::MAX,
            positions: usize::MAX,
            length: usize::MAX,
        },
        padding: None,
        lstms: Vec::new(),
        attended: BTreeSet::new(),
    };
    let has = |name: &str| graph.input.iter().any(|input| input.name == name);
    if ["token_type_ids", WORDS, TASK_IDS]
        .into_iter()
        .filter(|name| has(name))
        .count()
        > 1
    {
        return Err(unsupported(
            "several inputs among token types, words and tasks",
        ));
    }
    for input in &graph.input {
        let meaning = match input.name.as_str() {
            "input_ids" => Meaning::Ids,
            "attention_mask" => Meaning::Mask,
            "token_type_ids" | TASK_IDS => Meaning::Types,
            WORDS => Meaning::Words {
                input: None,
                layers: 0,
            },
            LABEL_VECTORS => Meaning::Labels,
            name => return Err(unsupported(&format!("the input `{name}`"))),
        };
        reader.meanings.insert(&input.name, meaning);
    }
    for node in &graph.node {
        reader.node(node)?;
    }
    let outputs: Vec<ValueId> = graph
        .output
        .iter()
        .map(|output| reader.output(&output.name))
        .collect::<Result<_>>()?;
    let Reader {
        mut values,
        rotaries,
        operations,
        limits,
        padding,
        ..
    } = reader;
    let stages = divide(operations, &outputs);
    let slots = assign_slots(&mut values, &stages, &outputs);
    Ok(Program {
        values,
        rotaries,
        slots,
        stages,
        outputs,
        limits,
        padding,
    })
}

pub fn signature(graph: &GraphProto) -> Result<Signature> {
    let signature = Signature::declared(graph)?;
    let is_known = |input: &TensorSpec| {
        let (is_known, axes, element_type) = match input.name.as_str() {
            LABEL_VECTORS => (true, 3, ElementType::Fp32),
            name => (INPUTS.contains(&name), 2, ElementType::Int64),
        };
        is_known && input.shape.len() == axes && input.element_type == element_type
    };
    if let Some(input) = signature.inputs.iter().find(|input| !is_known(input)) {
        return Err(unsupported(&format!("the input `{}`", input.name)));
    }
    match signature
        .outputs
        .iter()
        .find(|output| output.element_type != ElementType::Fp32)
    {
        Some(output) => Err(unsupported(&format!("the type of `{}`", output.name))),
        None => Ok(signature),
    }
}

fn unsupported(what: &str) -> Error {
    Error::model(format!(
        "expected a graph that the native engine supports, but found {what}"
    ))
    .with_hint("use `engine = \"onnx\"`")
}

/// The error for a node with inputs of another number or form.
fn other_inputs(node: &NodeProto) -> Error {
    unsupported(&format!("the inputs of `{}`", node.name))
}

/// The inputs of a node.
fn inputs<const COUNT: usize>(node: &NodeProto) -> Result<&[String; COUNT]> {
    let inputs = node.input.as_slice().try_into();
    inputs.map_err(|_| other_inputs(node))
}

/// A graph value's meaning.
#[derive(Clone, Copy, Debug)]
enum Meaning<'a> {
    Ids,
    Types,
    Mask,
    Rows(View),
    /// Activated columns; a product with the matrix's other columns reads them.
    Activated(Activation, View),
    /// Name of a table with values by distance.
    Distances(&'a str),
    /// Maxima over a layer's outputs, which only graph outputs read.
    Largest(ValueId),
    /// The numbers of words, or their vectors from an input's tokens after some recurrent layers.
    Words {
        input: Option<ValueId>,
        layers: usize,
    },
    /// Label vectors.
    Labels,
    /// Scores of spans, words or texts, which only graph outputs read.
    Spans(ValueId),
}

struct Reader<'a> {
    constants: HashMap<&'a str, &'a TensorProto>,
    files: &'a BTreeMap<String, Bytes>,
    meanings: HashMap<&'a str, Meaning<'a>>,
    values: Vec<Value>,
    rotaries: Vec<Rotary>,
    operations: Vec<Operation>,
    limits: Limits,
    padding: Option<u32>,
    /// Recurrent layers over words.
    lstms: Vec<Lstm>,
    /// Attention results, which are divided by texts and heads: only row operations read them.
    attended: BTreeSet<ValueId>,
}

impl<'a> Reader<'a> {
    fn node(&mut self, node: &'a NodeProto) -> Result<()> {
        let operator = (node.domain.as_str(), node.op_type.as_str());
        let input = |index| node.input_name(index);
        let meaning = match operator {
            (FUNCTIONS, "QuantizedLookup") => {
                let index = self.index(input(2))?;
                let (rows, width) = self.shape(input(0))?;
                let table = Table::Int8(
                    self.array(input(0), rows * width)?,
                    self.array(input(1), rows)?,
                );
                self.lookup(table, rows, width, index)?
            }
            ("", "Gather") | (FUNCTIONS, "Lookup") => {
                let index = self.index(input(1))?;
                let (rows, width) = self.shape(input(0))?;
                let table = Table::Fp32(self.floats(input(0), rows * width)?);
                self.lookup(table, rows, width, index)?
            }
            (FUNCTIONS, "Positions" | "PositionsAfterPadding") => self.positions(node)?,
            (FUNCTIONS, "FirstToken") => self.pool(Pooling::First, input(0))?,
            (FUNCTIONS, name @ ("FirstOfTokens" | "LastOfTokens" | "MeanOfTokens")) => {
                self.require_mask(node, input(1))?;
                let pooling = match name {
                    "FirstOfTokens" => Pooling::First,
                    "LastOfTokens" => Pooling::Last,
                    _ => Pooling::Mean,
                };
                self.pool(pooling, input(0))?
            }
            (FUNCTIONS, "DistanceValues") if matches!(self.meaning(input(1))?, Meaning::Ids) => {
                Meaning::Distances(input(0))
            }
            (FUNCTIONS, "Neighbours") => self.neighbours(node)?,
            (FUNCTIONS, "PreviousRow") => self.previous(node)?,
            (FUNCTIONS, "GatedConvolution") => self.gated_convolution(node)?,
            (FUNCTIONS, "DisentangledAttention") => self.disentangled_attention(node)?,
            (FUNCTIONS, name) if name.starts_with("Attention") => {
                self.attention_by_position(node)?
            }
            (
                FUNCTIONS,
                "QuantizedLinear"
                | "QuantizedLinearInBlocks"
                | "QuantizedLinearInWideBlocks"
                | "ScaledLinearInWideBlocks",
            ) => self.linear(node)?,
            (FUNCTIONS, name) if name.starts_with("LargestOutputs") => self.largest(node)?,
            (FUNCTIONS, "Words") => self.words(node)?,
            (FUNCTIONS, "WordLstm") => self.word_lstm(node)?,
            (FUNCTIONS, "Spans" | "LabelledSpans") => self.spans(node)?,
            (FUNCTIONS, "WordScores" | "LabelledWordScores") => self.word_scores(node)?,
            (FUNCTIONS, "TextScores") => self.text_scores(node)?,
            (FUNCTIONS, "JoinedSpans" | "AttendedSpans" | "ExpertSpans") => {
                self.counted_spans(node)?
            }
            (FUNCTIONS, "LabelScores") => self.label_scores(node)?,
            (FUNCTIONS, "Adapted" | "AdaptedRows") => self.adapted(node)?,
            (FUNCTIONS, name) if name.starts_with("Experts") => {
                self.chosen_experts(node, ExpertForm::Plain)?
            }
            (FUNCTIONS, name) if name.starts_with("GatedExperts") => {
                self.chosen_experts(node, ExpertForm::Gated)?
            }
            ("", "MatMul") | (FUNCTIONS, "PanelProduct") => self.dense(input(0), input(1))?,
            ("", "Add") => self.add(input(0), input(1))?,
            ("", "Mul") => self.multiply(node)?,
            ("", "LayerNormalization" | "SimplifiedLayerNormalization") | (FUNCTIONS, "Affine") => {
                let norm = self.norm(node, [input(1), input(2)])?;
                self.normalize([input(0), ""], norm)?
            }
            (MICROSOFT, "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization") => {
                let norm = self.norm(node, [input(2), input(3)])?;
                match node.output.get(3) {
                    None => self.normalize([input(0), input(1)], norm)?,
                    Some(sum) => {
                        let added = self.add(input(0), input(1))?;
                        self.meanings.insert(sum, added);
                        self.normalize([sum, ""], norm)?
                    }
                }
            }
            (MICROSOFT, "Gelu") => self.activate(Activation::Gelu, input(0))?,
            (MICROSOFT, "FastGelu") if node.input.len() == 1 => {
                self.activate(Activation::GeluTanh, input(0))?
            }
            (MICROSOFT, "QuickGelu") if float(node, "alpha") == Some(1.0) => {
                self.activate(Activation::Swish, input(0))?
            }
            ("", "Relu") => self.activate(Activation::Relu, input(0))?,
            ("", "Tanh") => self.activate(Activation::Tanh, input(0))?,
            (FUNCTIONS, "RoundedTanh") => self.activate(Activation::RoundedTanh, input(0))?,
            ("", "Split") => return self.split(node),
            (MICROSOFT, "MultiHeadAttention") => self.attention(node)?,
            // Values have a row per text or per token, whatever their axes.
            ("", "Squeeze" | "Identity" | "Cast") => self.meaning(input(0))?,
            ("", "Reshape") => self.heads(node)?,
            (domain, operator) => {
                return Err(unsupported(&format!(
                    "`{domain}.{operator}` in `{}`",
                    node.name
                )));
            }
        };
        let outputs: Vec<&String> = node.output.iter().filter(|name| !name.is_empty()).collect();
        let output = match outputs[..] {
            [output] => output,
            [output, sum] if operator.1.starts_with("Skip") && node.output.get(3) == Some(sum) => {
                output
            }
            _ => return Err(unsupported(&format!("the outputs of `{}`", node.name))),
        };
        self.meanings.insert(output, meaning);
        Ok(())
    }

    /// A row of a table per token, by its position.
    fn positions(&mut self, node: &'a NodeProto) -> Result<Meaning<'a>> {
        let input = |index| node.input_name(index);
        let (rows, width) = self.shape(input(0))?;
        let table = Table::Fp32(self.floats(input(0), rows * width)?);
        if node.op_type == "PositionsAfterPadding" {
            let no_padding = || unsupported(&format!("no padding id in `{}`", node.name));
            self.padding = Some(self.scalar(input(2)).ok_or_else(no_padding)?);
        }
        self.lookup(table, rows, width, Index::Position)
    }

    fn meaning(&self, name: &str) -> Result<Meaning<'a>> {
        let meaning = self.meanings.get(name).copied();
        meaning
            .ok_or_else(|| unsupported(&format!("`{name}`, which no supported operator computes")))
    }

    fn view(&self, name: &str) -> Result<View> {
        match self.meaning(name)? {
            Meaning::Rows(view) => Ok(view),
            _ => Err(unsupported(&format!("`{name}` in place of vectors"))),
        }
    }

    /// A value whose columns are all used.
    fn whole(&self, name: &str) -> Result<ValueId> {
        let view = self.view(name)?;
        if view.offset > 0 || view.width < self.values[view.value].width {
            return Err(unsupported(&format!("columns of a matrix as `{name}`")));
        }
        Ok(view.value)
    }

    /// A value that stages other than row stages can read.
    fn by_row(&self, name: &str) -> Result<View> {
        let view = self.view(name)?;
        match self.attended.contains(&view.value) {
            true => Err(unsupported(&format!(
                "attention whose result, `{name}`, is not projected"
            ))),
            false => Ok(view),
        }
    }

    /// A value with a row per token that stages other than row stages can read, and its width.
    fn tokens(&self, node: &NodeProto, name: &str) -> Result<(ValueId, usize)> {
        self.by_row(name)?;
        let value = self.whole(name)?;
        match self.values[value].per {
            Per::Token => Ok((value, self.values[value].width)),
            Per::Text => Err(other_inputs(node)),
        }
    }

    /// A graph output's value, whose columns are all used.
    fn output(&self, name: &str) -> Result<ValueId> {
        match self.meaning(name)? {
            Meaning::Largest(value) | Meaning::Spans(value) => Ok(value),
            _ => self.by_row(name).and_then(|_| self.whole(name)),
        }
    }

    /// Pools the token vectors `name` into one vector per text.
    fn pool(&mut self, pooling: Pooling, name: &str) -> Result<Meaning<'a>> {
        let (View { value, .. }, input) = (self.by_row(name)?, self.whole(name)?);
        let Value { per, width, .. } = self.values[value];
        if per == Per::Text {
            return Err(unsupported(&format!(
                "`{name}`, which has no vector per token"
            )));
        }
        self.emit(Per::Text, width, |out| RowOperation::Pool {
            pooling,
            input,
            out,
        })
    }

    fn require_mask(&self, node: &NodeProto, name: &str) -> Result<()> {
        match self.meaning(name)? {
            Meaning::Mask => Ok(()),
            _ => Err(unsupported(&format!("the mask of `{}`", node.name))),
        }
    }

    fn all(&self, value: ValueId) -> Meaning<'a> {
        Meaning::Rows(View {
            value,
            offset: 0,
            width: self.values[value].width,
        })
    }

    fn value(&mut self, per: Per, width: usize) -> ValueId {
        self.values.push(Value {
            per,
            width,
            slot: 0,
        });
        self.values.len() - 1
    }

    /// Adds an operation that makes a value of this width.
    fn emit(
        &mut self,
        per: Per,
        width: usize,
        operation: impl FnOnce(ValueId) -> RowOperation,
    ) -> Result<Meaning<'a>> {
        let out = self.value(per, width);
        self.row(per, operation(out));
        Ok(self.all(out))
    }

    fn row(&mut self, per: Per, operation: RowOperation) {
        self.operations.push(Operation::Row(per, operation));
    }

    fn index(&self, name: &str) -> Result<Index> {
        match self.meaning(name)? {
            Meaning::Ids => Ok(Index::Id),
            Meaning::Types => Ok(Index::Type),
            _ => Err(unsupported(&format!("`{name}` as the index of a table"))),
        }
    }

    fn check_width(&self, width: usize) -> Result<()> {
        match width.is_multiple_of(LANES) && width > 0 {
            true => Ok(()),
            false => Err(unsupported(&format!(
                "vectors of {width} values, not a multiple of {LANES}"
            ))),
        }
    }
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute
        .iter()
        .find(|attribute| attribute.name == name)
}

fn float(node: &NodeProto, name: &str) -> Option<f32> {
    attribute(node, name).map(|attribute| attribute.f)
}

fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    attribute(node, name).map(|attribute| attribute.i)
}
