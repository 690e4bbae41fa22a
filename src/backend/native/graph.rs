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
        Activation, Attention, Dense, Index, Limits, Linear, Norm, Per, Program, RowOperation, RowStage,
        Stage, Table, Value, ValueId, View,
    },
};

use crate::{
    backend::{Signature, TensorSpec},
    error::{Error, Result},
    onnx_proto::{
        AttributeProto, Dimension, EXTERNAL, FUNCTIONS, GraphProto, MICROSOFT, NodeProto, TensorProto,
        ValueInfoProto, data_type,
    },
    tensor::ElementType,
};

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
        limits: Limits { ids: usize::MAX, types: usize::MAX, positions: usize::MAX },
        padding: None,
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
    let [output] = &graph.output[..] else { return Err(unsupported("several outputs")) };
    let output = reader.rows(&output.name)?;
    Ok(reader.finish(output))
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
enum Meaning {
    Ids,
    Types,
    Mask,
    Rows(View),
}

/// An operation, and the values that it reads and writes.
enum Operation {
    Row(Per, RowOperation),
    Attention(Attention),
}

struct Reader<'a> {
    constants: HashMap<&'a str, &'a TensorProto>,
    files: &'a BTreeMap<String, Bytes>,
    meanings: HashMap<&'a str, Meaning>,
    values: Vec<Value>,
    operations: Vec<Operation>,
    limits: Limits,
    padding: Option<u32>,
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
                let found = self.whole(input(0))?;
                let out = self.value(Per::Text, self.values[found].width);
                self.row(Per::Text, RowOperation::First { input: found, out });
                self.all(out)
            }
            (FUNCTIONS, "QuantizedLinear") => self.linear(node)?,
            ("", "MatMul") => self.dense(input(0), input(1))?,
            ("", "Add") => self.add(input(0), input(1))?,
            ("", "LayerNormalization") => {
                let norm = self.norm(node, [input(1), input(2)])?;
                self.normalise([input(0), ""], norm)?
            }
            (MICROSOFT, "SkipLayerNormalization") => {
                let norm = self.norm(node, [input(2), input(3)])?;
                self.normalise([input(0), input(1)], norm)?
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
        let [output] = outputs[..] else {
            return Err(unsupported(&format!("the outputs of `{}`", node.name)));
        };
        self.meanings.insert(output, meaning);
        Ok(())
    }

    fn meaning(&self, name: &str) -> Result<Meaning> {
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

    fn rows(&self, name: &str) -> Result<ValueId> {
        self.whole(name)
    }

    fn all(&self, value: ValueId) -> Meaning {
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

    fn lookup(&mut self, table: Table, (rows, width): (usize, usize), index: Index) -> Result<Meaning> {
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

    fn linear(&mut self, node: &NodeProto) -> Result<Meaning> {
        let [input, weights, scales, sums, bias, _] = &node.input[..] else {
            return Err(unsupported(&format!("the inputs of `{}`", node.name)));
        };
        let input = self.whole(input)?;
        let Value { per, width: inputs, .. } = self.values[input];
        let shape = self.tensor(weights)?.dims.clone();
        let groups = inputs / 4;
        let panels = match shape[..] {
            [panels, found, 16, 4] if usize::try_from(found) == Ok(groups) => {
                usize::try_from(panels).unwrap_or(0)
            }
            _ => return Err(unsupported(&format!("weights of shape {shape:?} for {inputs} inputs"))),
        };
        let outputs = panels.saturating_mul(LANES);
        let layer = Linear {
            inputs,
            outputs,
            panels: self.array(weights, panels.saturating_mul(groups))?,
            scales: self.array(scales, panels)?,
            sums: self.array(sums, panels)?,
            bias: self.array(bias, panels)?,
            activation: None,
        };
        let out = self.value(per, outputs);
        self.row(per, RowOperation::Linear { input, layer, out });
        Ok(self.all(out))
    }

    fn dense(&mut self, input: &str, weights: &str) -> Result<Meaning> {
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
    fn add(&mut self, left: &str, right: &str) -> Result<Meaning> {
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
        Ok(Norm { gain: self.array(gain, width / LANES)?, bias: self.array(bias, width / LANES)?, epsilon })
    }

    fn normalise(&mut self, [input, residual]: [&str; 2], norm: Norm) -> Result<Meaning> {
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
    fn activate(&mut self, function: Activation, input: &str) -> Result<Meaning> {
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

    fn split(&mut self, node: &'a NodeProto) -> Result<()> {
        let name = node.input.first().map(String::as_str).unwrap_or_default();
        let View { value, offset, width } = self.view(name)?;
        let parts = node.output.len();
        if integer(node, "axis") != Some(-1) || node.input.len() > 1 || !width.is_multiple_of(parts) {
            return Err(unsupported(&format!("the arguments of `{}`", node.name)));
        }
        let width = width / parts;
        for (part, output) in node.output.iter().enumerate() {
            let view = View { value, offset: offset + part * width, width };
            self.meanings.insert(output, Meaning::Rows(view));
        }
        Ok(())
    }

    fn attention(&mut self, node: &NodeProto) -> Result<Meaning> {
        let [queries, keys, values, bias, mask] = &node.input[..] else {
            return Err(unsupported(&format!("the inputs of `{}`", node.name)));
        };
        if !bias.is_empty() || !matches!(self.meaning(mask)?, Meaning::Mask) {
            return Err(unsupported(&format!("the inputs of `{}`", node.name)));
        }
        let [queries, keys, values] = [self.view(queries)?, self.view(keys)?, self.view(values)?];
        let heads = integer(node, "num_heads").and_then(|heads| usize::try_from(heads).ok()).unwrap_or(0);
        let per = |view: View| self.values[view.value].per;
        let is_whole = heads > 0
            && queries.width.is_multiple_of(heads)
            && keys.width == queries.width
            && values.width == queries.width
            && per(keys) == Per::Token
            && per(values) == Per::Token;
        if !is_whole {
            return Err(unsupported(&format!("the shapes of `{}`", node.name)));
        }
        let size = queries.width / heads;
        let scale = float(node, "scale").unwrap_or_else(|| 1.0 / (size as f32).sqrt());
        let out = self.value(per(queries), queries.width);
        self.operations.push(Operation::Attention(Attention { queries, keys, values, heads, scale, out }));
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
        let tensor = self.constants.get(name).filter(|tensor| tensor.data_type == data_type::INT64)?;
        Some(i64::from_le_bytes(*tensor.raw_data.first_chunk()?))
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

    /// Divides the operations into stages.
    fn finish(self, output: ValueId) -> Program {
        let mut stages: Vec<Stage> = Vec::new();
        for operation in self.operations {
            match operation {
                Operation::Attention(attention) => stages.push(Stage::Attention(attention)),
                Operation::Row(per, operation) => {
                    // The first tokens of a block of texts are in any block of tokens.
                    let continues = !matches!(operation, RowOperation::First { .. });
                    match stages.last_mut() {
                        Some(Stage::Rows(stage)) if stage.per == per && continues => {
                            stage.operations.push(operation)
                        }
                        _ => stages.push(Stage::Rows(RowStage {
                            per,
                            loads: Vec::new(),
                            operations: vec![operation],
                            stores: Vec::new(),
                        })),
                    }
                }
            }
        }
        // From the last stage to the first, so that the values that later stages read are known.
        let mut read_later: BTreeSet<ValueId> = [output].into();
        for stage in stages.iter_mut().rev() {
            match stage {
                Stage::Attention(attention) => {
                    let views = [attention.queries, attention.keys, attention.values];
                    read_later.extend(views.map(|view| view.value));
                }
                Stage::Rows(stage) => {
                    let computed: BTreeSet<ValueId> =
                        stage.operations.iter().map(RowOperation::output).collect();
                    stage.stores = computed.intersection(&read_later).copied().collect();
                    let mut read = BTreeSet::new();
                    for operation in &stage.operations {
                        match *operation {
                            // Read from its blocks, not from the stage's own.
                            RowOperation::First { input, .. } => {
                                read_later.insert(input);
                            }
                            _ => read.extend(operation.inputs()),
                        }
                    }
                    let loads = read.difference(&computed);
                    stage.loads = loads.map(|value| (*value, !read_later.contains(value))).collect();
                    read_later.extend(stage.loads.iter().map(|(value, _)| *value));
                }
            }
        }
        let mut values = self.values;
        let slots = assign_slots(&mut values, &stages, output);
        Program { values, slots, stages, output, limits: self.limits, padding: self.padding }
    }
}

/// Assigns memory to values, so that a value takes that of one that no later operation reads. Returns the number of
/// slots.
fn assign_slots(values: &mut [Value], stages: &[Stage], output: ValueId) -> usize {
    // The values that each operation reads, and the one that it writes.
    let mut operations: Vec<(Vec<ValueId>, ValueId)> = Vec::new();
    let mut is_of_attention = vec![false; values.len()];
    for stage in stages {
        match stage {
            Stage::Attention(Attention { queries, keys, values, out, .. }) => {
                is_of_attention[*out] = true;
                operations.push(([queries, keys, values].map(|view| view.value).into(), *out));
            }
            Stage::Rows(stage) => {
                operations.extend(stage.operations.iter().map(|it| (it.inputs(), it.output())));
            }
        }
    }
    let mut last_read = vec![0; values.len()];
    for (place, (inputs, _)) in operations.iter().enumerate() {
        inputs.iter().for_each(|input| last_read[*input] = place);
    }
    last_read[output] = usize::MAX;
    let (mut slots, mut free) = (0, Vec::new());
    for (place, (inputs, out)) in operations.iter().enumerate() {
        // Attention divides its output into other parts than blocks of rows.
        let shape = |value: ValueId| (values[value].per, values[value].width, is_of_attention[value]);
        let found = free.iter().position(|value| shape(*value) == shape(*out));
        let slot = match found.map(|index| free.swap_remove(index)) {
            Some(value) => values[value].slot,
            None => {
                slots += 1;
                slots - 1
            }
        };
        values[*out].slot = slot;
        let unused: BTreeSet<ValueId> =
            inputs.iter().copied().filter(|input| last_read[*input] == place).collect();
        free.extend(unused);
    }
    slots
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
