//! Reads a program from an ONNX graph, as `kivu build` writes it.
//!
//! Operators are those of ONNX and of ONNX Runtime, and the model-local functions of the domain `kivu`, whose bodies in
//! the file have the same results: see `build/functions.rs`. A graph with other operators, or with the same in another
//! arrangement, is refused with the name of the first that is not supported; ONNX Runtime can run it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytemuck::Pod;
use bytes::Bytes;

use kivu_engine::{
    array::Array,
    kernel::LANES,
    program::{
        Activation, Attention, Dense, DistanceBias, Index, Largest, Limits, Linear, Norm, Per, Program,
        Reach, RowOperation, Table, Value, ValueId, View,
    },
    rotary::{MAX_POSITIONS, Rotary},
};

use super::stages::{Operation, assign_slots, divide};
use crate::{
    backend::{Signature, TensorSpec},
    error::{Error, Result},
    onnx_proto::{
        AttributeProto, Dimension, EXTERNAL, FUNCTIONS, GraphProto, MICROSOFT, NodeProto, TensorProto,
        ValueInfoProto, data_type,
    },
    tensor::ElementType,
};

/// The output of vectors for late interaction. In a model that has it, masked tokens after the last other token have vectors
/// too: they fill up queries.
pub const MULTI_VECTORS: &str = "multi_vectors";

/// The inputs of an encoder.
pub(super) const INPUTS: [&str; 3] = ["input_ids", "token_type_ids", "attention_mask"];

/// Reads the program of `graph`, whose external weights are in `files`, by name.
pub(super) fn read(graph: &GraphProto, files: &BTreeMap<String, Bytes>) -> Result<Program> {
    let constants = graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut reader = Reader {
        constants,
        files,
        meanings: HashMap::new(),
        values: Vec::new(),
        operations: Vec::new(),
        limits: Limits { ids: usize::MAX, types: usize::MAX, positions: usize::MAX, length: usize::MAX },
        padding: None,
        attended: BTreeSet::new(),
    };
    for input in &graph.input {
        let meaning = match input.name.as_str() {
            "input_ids" => Meaning::Ids,
            "attention_mask" => Meaning::Mask,
            "token_type_ids" => Meaning::Types,
            name => return Err(unsupported(&format!("the input `{name}`"))),
        };
        reader.meanings.insert(&input.name, meaning);
    }
    for node in &graph.node {
        reader.node(node)?;
    }
    let outputs: Vec<ValueId> =
        graph.output.iter().map(|output| reader.output(&output.name)).collect::<Result<_>>()?;
    let Reader { mut values, operations, limits, padding, .. } = reader;
    let stages = divide(operations, &outputs);
    let slots = assign_slots(&mut values, &stages, &outputs);
    Ok(Program { values, slots, stages, outputs, limits, padding })
}

/// The inputs and outputs of a graph.
pub(super) fn signature(graph: &GraphProto) -> Result<Signature> {
    let specs = |values: &[ValueInfoProto]| values.iter().map(spec).collect::<Result<_>>();
    let constants: Vec<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let inputs: Vec<ValueInfoProto> =
        graph.input.iter().filter(|input| !constants.contains(&input.name.as_str())).cloned().collect();
    let signature = Signature { inputs: specs(&inputs)?, outputs: specs(&graph.output)? };
    let is_known = |input: &TensorSpec| INPUTS.contains(&input.name.as_str()) && input.shape.len() == 2;
    match signature.inputs.iter().find(|input| !is_known(input)) {
        Some(input) => Err(unsupported(&format!("the input `{}`", input.name))),
        None => Ok(signature),
    }
}

fn spec(value: &ValueInfoProto) -> Result<TensorSpec> {
    let found = value.r#type.as_ref().and_then(|value| value.tensor_type.as_ref());
    let element_type = match found.map(|tensor| tensor.elem_type) {
        Some(data_type::FLOAT) => ElementType::Fp32,
        Some(data_type::INT64) => ElementType::Int64,
        _ => return Err(unsupported(&format!("the type of `{}`", value.name))),
    };
    let axes = found.and_then(|tensor| tensor.shape.as_ref()).map_or(&[][..], |shape| &shape.dim);
    let side = |axis: &crate::onnx_proto::DimensionProto| match axis.value {
        Some(Dimension::DimValue(length)) => length,
        _ => -1,
    };
    Ok(TensorSpec::new(&*value.name, element_type, axes.iter().map(side).collect::<Vec<_>>()))
}

fn unsupported(what: &str) -> Error {
    Error::model(format!(
        "expected a graph that the native engine supports, but found {what}; use `engine = \"onnx\"`"
    ))
}

/// The meaning of a name in the graph.
#[derive(Clone, Copy, Debug)]
enum Meaning<'a> {
    Ids,
    Types,
    Mask,
    Rows(View),
    /// Activated columns, which a product with other columns of the same matrix reads.
    Activated(Activation, View),
    /// The name of a table of values by distance.
    Distances(&'a str),
    /// Values in parts of a layer's outputs, which only outputs of the graph read.
    Largest(ValueId),
}

/// How heads attend.
struct Settings {
    heads: usize,
    key_heads: usize,
    /// That of the size of a head, if none.
    scale: Option<f32>,
    frequencies: Option<Vec<f32>>,
    reach: Reach,
    bias: DistanceBias,
}

struct Reader<'a> {
    constants: HashMap<&'a str, &'a TensorProto>,
    files: &'a BTreeMap<String, Bytes>,
    meanings: HashMap<&'a str, Meaning<'a>>,
    values: Vec<Value>,
    operations: Vec<Operation>,
    limits: Limits,
    padding: Option<u32>,
    /// The results of attention, which are in parts of texts and heads: only operations on rows read them.
    attended: BTreeSet<ValueId>,
}

impl<'a> Reader<'a> {
    fn node(&mut self, node: &'a NodeProto) -> Result<()> {
        let operator = (node.domain.as_str(), node.op_type.as_str());
        let input = |index: usize| node.input.get(index).map(String::as_str).unwrap_or_default();
        let meaning = match operator {
            (FUNCTIONS, "QuantizedLookup") => {
                let index = self.index(input(2))?;
                let (rows, width) = self.shape(input(0))?;
                let table = Table::Int8(self.array(input(0), rows * width)?, self.array(input(1), rows)?);
                self.lookup(table, (rows, width), index)?
            }
            ("", "Gather") => {
                let index = self.index(input(1))?;
                let (rows, width) = self.shape(input(0))?;
                let table = Table::Fp32(self.array(input(0), rows * width)?);
                self.lookup(table, (rows, width), index)?
            }
            (FUNCTIONS, "Positions" | "PositionsAfterPadding") => {
                let (rows, width) = self.shape(input(0))?;
                let table = Table::Fp32(self.array(input(0), rows * width)?);
                if operator.1 == "PositionsAfterPadding" {
                    let padding = self.scalar(input(2)).and_then(|padding| u32::try_from(padding).ok());
                    let no_padding = || unsupported(&format!("no id of padding in `{}`", node.name));
                    self.padding = Some(padding.ok_or_else(no_padding)?);
                }
                self.lookup(table, (rows, width), Index::Position)?
            }
            (FUNCTIONS, "FirstToken") => {
                let (input, out) = self.text_from_tokens(input(0))?;
                self.row(Per::Text, RowOperation::First { input, out });
                self.all(out)
            }
            (FUNCTIONS, "MeanOfTokens") => {
                self.require_mask(node, input(1))?;
                let (input, out) = self.text_from_tokens(input(0))?;
                self.row(Per::Text, RowOperation::Mean { input, out });
                self.all(out)
            }
            (FUNCTIONS, "DistanceValues") if matches!(self.meaning(input(1))?, Meaning::Ids) => {
                Meaning::Distances(input(0))
            }
            (FUNCTIONS, name) if name.starts_with("Attention") => self.attention_by_position(node)?,
            (FUNCTIONS, "QuantizedLinear") => self.linear(node)?,
            (FUNCTIONS, "LargestOutputs") => self.largest(node)?,
            ("", "MatMul") => self.dense(input(0), input(1))?,
            ("", "Add") => self.add(input(0), input(1))?,
            ("", "Mul") => self.gate(node)?,
            ("", "LayerNormalization") => {
                let norm = self.norm(node, [input(1), input(2)])?;
                self.normalise([input(0), ""], norm)?
            }
            (MICROSOFT, "SkipLayerNormalization") => {
                let norm = self.norm(node, [input(2), input(3)])?;
                match node.output.get(3) {
                    None => self.normalise([input(0), input(1)], norm)?,
                    Some(sum) => {
                        let added = self.add(input(0), input(1))?;
                        self.meanings.insert(sum, added);
                        self.normalise([sum, ""], norm)?
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
            ("", "Split") => return self.split(node),
            (MICROSOFT, "MultiHeadAttention") => self.attention(node)?,
            // Values have a row per text or per token, whatever their axes.
            ("", "Squeeze" | "Identity" | "Cast") => self.meaning(input(0))?,
            (domain, operator) => {
                return Err(unsupported(&format!("`{domain}.{operator}` in `{}`", node.name)));
            }
        };
        let outputs: Vec<&String> = node.output.iter().filter(|name| !name.is_empty()).collect();
        let output = match outputs[..] {
            [output] => output,
            [output, sum] if operator.1 == "SkipLayerNormalization" && node.output.get(3) == Some(sum) => {
                output
            }
            _ => return Err(unsupported(&format!("the outputs of `{}`", node.name))),
        };
        self.meanings.insert(output, meaning);
        Ok(())
    }

    fn meaning(&self, name: &str) -> Result<Meaning<'a>> {
        let meaning = self.meanings.get(name).copied();
        meaning.ok_or_else(|| unsupported(&format!("`{name}`, which no supported operator computes")))
    }

    fn view(&self, name: &str) -> Result<View> {
        match self.meaning(name)? {
            Meaning::Rows(view) => Ok(view),
            _ => Err(unsupported(&format!("`{name}` in a place of vectors"))),
        }
    }

    /// A value of which all columns are used.
    fn whole(&self, name: &str) -> Result<ValueId> {
        let view = self.view(name)?;
        if view.offset > 0 || view.width < self.values[view.value].width {
            return Err(unsupported(&format!("columns of a matrix as `{name}`")));
        }
        Ok(view.value)
    }

    /// A value that operations other than those on rows can read.
    fn by_row(&self, name: &str) -> Result<View> {
        let view = self.view(name)?;
        match self.attended.contains(&view.value) {
            true => Err(unsupported(&format!("attention whose result, `{name}`, is not projected"))),
            false => Ok(view),
        }
    }

    /// The value of an output of the graph, of which all columns are used.
    fn output(&self, name: &str) -> Result<ValueId> {
        match self.meaning(name)? {
            Meaning::Largest(value) => Ok(value),
            _ => self.by_row(name).and_then(|_| self.whole(name)),
        }
    }

    /// A value of tokens, and one of the same width for texts.
    fn text_from_tokens(&mut self, name: &str) -> Result<(ValueId, ValueId)> {
        let (View { value, .. }, input) = (self.by_row(name)?, self.whole(name)?);
        let Value { per, width, .. } = self.values[value];
        match per {
            Per::Token => Ok((input, self.value(Per::Text, width))),
            Per::Text => Err(unsupported(&format!("`{name}`, which has no vector per token"))),
        }
    }

    fn require_mask(&self, node: &NodeProto, name: &str) -> Result<()> {
        match self.meaning(name)? {
            Meaning::Mask => Ok(()),
            _ => Err(unsupported(&format!("the mask of `{}`", node.name))),
        }
    }

    fn all(&self, value: ValueId) -> Meaning<'a> {
        Meaning::Rows(View { value, offset: 0, width: self.values[value].width })
    }

    fn value(&mut self, per: Per, width: usize) -> ValueId {
        self.values.push(Value { per, width, slot: 0 });
        self.values.len() - 1
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

    fn lookup(&mut self, table: Table, (rows, width): (usize, usize), index: Index) -> Result<Meaning<'a>> {
        self.check_width(width)?;
        let limit = match index {
            Index::Id => &mut self.limits.ids,
            Index::Type => &mut self.limits.types,
            Index::Position => &mut self.limits.positions,
        };
        *limit = rows.min(*limit);
        let out = self.value(Per::Token, width);
        self.row(Per::Token, RowOperation::Lookup { table, index, out });
        Ok(self.all(out))
    }

    fn linear(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let [input, weights, scales, sums, bias, _] = &node.input[..] else {
            return Err(unsupported(&format!("the inputs of `{}`", node.name)));
        };
        let input = self.whole(input)?;
        let Value { per, width: inputs, .. } = self.values[input];
        let layer = self.layer(inputs, [weights, scales, sums, bias])?;
        let out = self.value(per, layer.outputs);
        self.row(per, RowOperation::Linear { input, layer, out });
        Ok(self.all(out))
    }

    /// The weights of a linear layer in int8.
    fn layer(&self, inputs: usize, [weights, scales, sums, bias]: [&str; 4]) -> Result<Linear> {
        let shape = self.tensor(weights)?.dims.clone();
        let groups = inputs / 4;
        let panels = match shape[..] {
            [panels, found, 16, 4] if usize::try_from(found) == Ok(groups) => {
                usize::try_from(panels).unwrap_or(0)
            }
            _ => return Err(unsupported(&format!("weights of shape {shape:?} for {inputs} inputs"))),
        };
        Ok(Linear {
            inputs,
            outputs: panels.saturating_mul(LANES),
            panels: self.array(weights, panels.saturating_mul(groups))?,
            scales: self.array(scales, panels)?,
            sums: self.array(sums, panels)?,
            bias: self.array(bias, panels)?,
            activation: None,
        })
    }

    /// The largest outputs of a linear layer among the tokens of a text, without those that pad the layer.
    fn largest(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let [input, mask, weights, scales, sums, bias, _, width] = &node.input[..] else {
            return Err(refuse());
        };
        self.require_mask(node, mask)?;
        self.by_row(input)?;
        let input = self.whole(input)?;
        let Value { per, width: inputs, .. } = self.values[input];
        let layer = self.layer(inputs, [weights, scales, sums, bias])?;
        let width = self.scalar(width).and_then(|width| usize::try_from(width).ok()).unwrap_or(0);
        if per != Per::Token || width == 0 || layer.outputs != width.next_multiple_of(LANES) {
            return Err(refuse());
        }
        let out = self.value(Per::Text, width);
        self.operations.push(Operation::Largest(Largest { input, layer, out }));
        Ok(Meaning::Largest(out))
    }

    fn dense(&mut self, input: &str, weights: &str) -> Result<Meaning<'a>> {
        let input = self.whole(input)?;
        let Value { per, width, .. } = self.values[input];
        let (inputs, outputs) = self.shape(weights)?;
        if inputs != width {
            return Err(unsupported(&format!("`{weights}` with {inputs} rows for {width} inputs")));
        }
        let layer = Dense { outputs, weights: self.array(weights, inputs * outputs)?, bias: None };
        let out = self.value(per, outputs);
        self.row(per, RowOperation::Dense { input, layer, out });
        Ok(self.all(out))
    }

    /// The sum of two values, or the bias of the layer before.
    fn add(&mut self, left: &str, right: &str) -> Result<Meaning<'a>> {
        let left = self.whole(left)?;
        let Value { per, width, .. } = self.values[left];
        if self.constants.contains_key(right) {
            let added: Array<f32> = self.array(right, width)?;
            if let Some(Operation::Row(_, RowOperation::Dense { layer, out, .. })) =
                self.operations.last_mut()
                && *out == left
                && layer.bias.is_none()
            {
                layer.bias = Some(added);
                return Ok(self.all(left));
            }
            return Err(unsupported(&format!("the sum with the constant `{right}`")));
        }
        let inputs = [left, self.same(right, left)?];
        let out = self.value(per, width);
        self.row(per, RowOperation::Add { inputs, out });
        Ok(self.all(out))
    }

    /// A value of the same rows and width as `other`.
    fn same(&self, name: &str, other: ValueId) -> Result<ValueId> {
        let found = self.whole(name)?;
        match self.values[found] == self.values[other] {
            true => Ok(found),
            false => Err(unsupported(&format!("`{name}`, whose rows differ from those that it is added to"))),
        }
    }

    fn norm(&self, node: &NodeProto, [gain, bias]: [&str; 2]) -> Result<Norm> {
        let width = self.tensor(gain)?.dims.first().copied().unwrap_or(0);
        let width = usize::try_from(width).unwrap_or(0);
        let epsilon = float(node, "epsilon").unwrap_or(1e-5);
        self.check_width(width)?;
        let bias = match bias {
            "" => vec![[0.0; LANES]; width / LANES].into(),
            name => self.array(name, width / LANES)?,
        };
        Ok(Norm { gain: self.array(gain, width / LANES)?, bias, epsilon })
    }

    fn normalise(&mut self, [input, residual]: [&str; 2], norm: Norm) -> Result<Meaning<'a>> {
        let input = self.whole(input)?;
        let residual = if residual.is_empty() { None } else { Some(self.same(residual, input)?) };
        let Value { per, width, .. } = self.values[input];
        if norm.gain.len() * LANES != width {
            return Err(unsupported(&format!(
                "a normalization of {} values for {width}",
                norm.gain.len() * LANES
            )));
        }
        let out = self.value(per, width);
        self.row(per, RowOperation::Norm { input, residual, norm, out });
        Ok(self.all(out))
    }

    /// An activation, as a part of the linear layer before it if there is one.
    fn activate(&mut self, function: Activation, input: &str) -> Result<Meaning<'a>> {
        let view = self.view(input)?;
        if view.width < self.values[view.value].width {
            return Ok(Meaning::Activated(function, view));
        }
        let input = self.whole(input)?;
        if let Some(Operation::Row(_, RowOperation::Linear { layer, out, .. })) = self.operations.last_mut()
            && *out == input
            && layer.activation.is_none()
        {
            layer.activation = Some(function);
            return Ok(self.all(input));
        }
        let Value { per, width, .. } = self.values[input];
        self.check_width(width)?;
        let out = self.value(per, width);
        self.row(per, RowOperation::Activation { function, input, out });
        Ok(self.all(out))
    }

    /// The product of one half of a matrix, activated, and the other half.
    fn gate(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the product `{}`, which is not that of a gate", node.name));
        let [left, right] = &node.input[..] else { return Err(refuse()) };
        let (Meaning::Activated(function, activated), Meaning::Rows(other)) =
            (self.meaning(left)?, self.meaning(right)?)
        else {
            return Err(refuse());
        };
        let (input, width) = (activated.value, activated.width);
        let halves = [activated.offset, other.offset];
        let are_halves = other.value == input
            && other.width == width
            && self.values[input].width == 2 * width
            && (halves == [0, width] || halves == [width, 0]);
        if !are_halves {
            return Err(refuse());
        }
        self.check_width(width)?;
        let per = self.values[input].per;
        let out = self.value(per, width);
        self.row(per, RowOperation::Gate { function, activates_second: halves[0] > 0, input, out });
        Ok(self.all(out))
    }

    fn split(&mut self, node: &'a NodeProto) -> Result<()> {
        let name = node.input.first().map(String::as_str).unwrap_or_default();
        let View { value, offset, width } = self.view(name)?;
        let refuse = || unsupported(&format!("the arguments of `{}`", node.name));
        let parts = node.output.len();
        let widths = match node.input.get(1) {
            Some(lengths) => self.integers(lengths).ok_or_else(refuse)?,
            None if parts > 0 => vec![(width / parts) as i64; parts],
            None => return Err(refuse()),
        };
        let widths: Vec<usize> = widths.into_iter().filter_map(|width| usize::try_from(width).ok()).collect();
        let total = widths.iter().try_fold(0_usize, |sum, width| sum.checked_add(*width));
        if integer(node, "axis") != Some(-1) || widths.len() != parts || total != Some(width) {
            return Err(refuse());
        }
        let mut offset = offset;
        for (width, output) in widths.into_iter().zip(&node.output) {
            self.meanings.insert(output, Meaning::Rows(View { value, offset, width }));
            offset += width;
        }
        Ok(())
    }

    /// Attention of ONNX Runtime.
    fn attention(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let [queries, keys, values, bias, mask, others @ ..] = &node.input[..] else { return Err(refuse()) };
        self.require_mask(node, mask)?;
        let heads = integer(node, "num_heads").and_then(|heads| usize::try_from(heads).ok()).unwrap_or(0);
        let distances = match others {
            [] => DistanceBias::None,
            [distances] if bias.is_empty() => self.distances(distances, heads)?,
            _ => return Err(refuse()),
        };
        if !bias.is_empty() {
            return Err(refuse());
        }
        let settings = Settings {
            heads,
            key_heads: heads,
            scale: float(node, "scale"),
            frequencies: None,
            reach: Reach::ALL,
            bias: distances,
        };
        self.attend(node, [queries, keys, values], settings)
    }

    /// The values for each distance, called `name`.
    fn distances(&mut self, name: &str, heads: usize) -> Result<DistanceBias> {
        let Meaning::Distances(table) = self.meaning(name)? else {
            return Err(unsupported(&format!("`{name}` as a bias of attention")));
        };
        let shape = &self.tensor(table)?.dims;
        let count = match shape[..] {
            [1, found, count] if usize::try_from(found) == Ok(heads) => usize::try_from(count).ok(),
            _ => None,
        };
        let Some(count) = count.filter(|count| count % 2 == 1) else {
            return Err(unsupported(&format!("`{table}` of shape {shape:?} as values for distances")));
        };
        self.limits.length = self.limits.length.min(count / 2 + 1);
        let values = self.array(table, heads.saturating_mul(count))?;
        Ok(DistanceBias::Values { values, farthest: count / 2 })
    }

    /// Attention that depends on positions, see `build/functions.rs`.
    fn attention_by_position(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the arguments of `{}`", node.name));
        let [queries, keys, values, mask, ids, shape, scale, frequencies, slopes] = &node.input[..] else {
            return Err(refuse());
        };
        self.require_mask(node, mask)?;
        let shape = self.integers(shape).ok_or_else(refuse)?;
        let number = |number: i64| usize::try_from(number).ok();
        let [heads, key_heads, before, after] = shape[..] else { return Err(refuse()) };
        let (Some(heads), Some(key_heads)) = (number(heads), number(key_heads)) else { return Err(refuse()) };
        // A negative number means all tokens.
        let side = |side: i64| number(side).unwrap_or(usize::MAX);
        let reach = Reach { before: side(before), after: side(after) };
        let scale: Array<f32> = self.array(scale, 1)?;
        let bias = match slopes.as_str() {
            "" => DistanceBias::None,
            slopes => DistanceBias::Slopes(self.array(slopes, heads)?),
        };
        let frequencies = match frequencies.as_str() {
            "" => None,
            name => {
                let (_, pairs) = self.shape(name)?;
                let frequencies: Array<f32> = self.array(name, pairs)?;
                Some(frequencies.to_vec())
            }
        };
        let is_of_tokens = matches!(self.meaning(ids)?, Meaning::Ids);
        let queries_are_tokens = self.values[self.view(queries)?.value].per == Per::Token;
        if !is_of_tokens || !queries_are_tokens {
            return Err(refuse());
        }
        let settings = Settings { heads, key_heads, scale: Some(scale[0]), frequencies, reach, bias };
        self.attend(node, [queries, keys, values], settings)
    }

    fn attend(&mut self, node: &NodeProto, names: [&str; 3], settings: Settings) -> Result<Meaning<'a>> {
        let Settings { heads, key_heads, scale, frequencies, reach, bias } = settings;
        let [queries, keys, values] = names.map(|name| self.by_row(name));
        let (queries, keys, values) = (queries?, keys?, values?);
        let per = |view: View| self.values[view.value].per;
        let divides = |heads: usize, width: usize| heads > 0 && width.is_multiple_of(heads);
        let fits = divides(heads, queries.width)
            && divides(key_heads, keys.width)
            && divides(key_heads, heads)
            && keys.width / key_heads == queries.width / heads
            && values.width == keys.width
            && per(keys) == Per::Token
            && per(values) == Per::Token;
        if !fits {
            return Err(unsupported(&format!("the shapes of `{}`", node.name)));
        }
        let size = queries.width / heads;
        let rotary = match frequencies {
            Some(frequencies) if 2 * frequencies.len() > size => {
                return Err(unsupported(&format!("the frequencies of `{}`", node.name)));
            }
            Some(frequencies) => {
                self.limits.length = self.limits.length.min(MAX_POSITIONS);
                Some(Rotary::new(frequencies))
            }
            None => None,
        };
        let scale = scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt());
        let out = self.value(per(queries), queries.width);
        self.attended.insert(out);
        self.operations.push(Operation::Attention(Attention {
            queries,
            keys,
            values,
            heads,
            key_heads,
            scale,
            rotary,
            reach,
            bias,
            out,
        }));
        Ok(self.all(out))
    }

    fn check_width(&self, width: usize) -> Result<()> {
        match width.is_multiple_of(LANES) && width > 0 {
            true => Ok(()),
            false => Err(unsupported(&format!("vectors of {width} values, not a multiple of {LANES}"))),
        }
    }

    fn tensor(&self, name: &str) -> Result<&'a TensorProto> {
        let tensor = self.constants.get(name).copied();
        tensor.ok_or_else(|| unsupported(&format!("`{name}`, which is not a constant")))
    }

    /// The shape of a constant matrix.
    fn shape(&self, name: &str) -> Result<(usize, usize)> {
        let shape = &self.tensor(name)?.dims;
        let side = |side: i64| usize::try_from(side).ok();
        let found = if let [rows, width] = shape[..] { side(rows).zip(side(width)) } else { None };
        let found = found.filter(|(rows, width)| rows.checked_mul(*width).is_some());
        found.ok_or_else(|| unsupported(&format!("`{name}` of shape {shape:?} as a matrix")))
    }

    fn scalar(&self, name: &str) -> Option<i64> {
        self.integers(name)?.first().copied()
    }

    fn integers(&self, name: &str) -> Option<Vec<i64>> {
        let tensor = self.constants.get(name).filter(|tensor| tensor.data_type == data_type::INT64)?;
        Some(tensor.raw_data.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// A constant of `length` elements.
    fn array<T: Pod + Send>(&self, name: &str, length: usize) -> Result<Array<T>> {
        let tensor = self.tensor(name)?;
        let bytes = bytes(tensor, self.files)?;
        if bytes.len() != length.saturating_mul(size_of::<T>()) {
            return Err(Error::model(format!(
                "expected `{name}` of {length} elements of {} bytes, but found {} bytes",
                size_of::<T>(),
                bytes.len()
            )));
        }
        Ok(Array::new(&bytes))
    }
}

/// The data of a constant.
pub(super) fn bytes(tensor: &TensorProto, files: &BTreeMap<String, Bytes>) -> Result<Bytes> {
    if tensor.data_location != EXTERNAL {
        return Ok(tensor.raw_data.clone());
    }
    let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key);
    let number = |key: &str| entry(key).and_then(|entry| entry.value.parse::<usize>().ok());
    let file = entry("location").and_then(|entry| files.get(&entry.value));
    let part = file.zip(number("offset")).zip(number("length")).and_then(|((file, offset), length)| {
        let end = offset.checked_add(length).filter(|end| *end <= file.len())?;
        Some(file.slice(offset..end))
    });
    part.ok_or_else(|| {
        Error::model(format!(
            "expected the data of `{}` in a file of the bundle, but found none",
            tensor.name
        ))
    })
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

fn float(node: &NodeProto, name: &str) -> Option<f32> {
    attribute(node, name).map(|attribute| attribute.f)
}

fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    attribute(node, name).map(|attribute| attribute.i)
}
