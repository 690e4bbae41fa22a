//! Lookups, linear layers, norms and activations: operations that compute each row on its own.

use kivu_engine::{
    array::Array,
    floats::Floats,
    kernel::{COLUMNS, LANES},
    program::{
        Activation, Adapters, Convolution, Dense, ExpertStage, Index, InputScaling, Largest, Layer,
        LimitedGate, Linear, Norm, Per, Router, RouterSoftmax, RowOperation, Table, Value, ValueId,
        View,
    },
};

use super::{
    ExpertForm, Meaning, Operation, Reader, float, inputs, integer, other_inputs, unsupported,
};
use kivu_base::{Result, onnx_proto::NodeProto};

/// Maximum number of rows that one row is joined from, far above published models'.
const MAX_NEIGHBOURS: usize = 63;

impl<'a> Reader<'a> {
    pub fn lookup(
        &mut self,
        table: Table,
        rows: usize,
        width: usize,
        index: Index,
    ) -> Result<Meaning<'a>> {
        self.check_width(width)?;
        let limit = match index {
            Index::Id => &mut self.limits.ids,
            Index::Type => &mut self.limits.types,
            Index::Position => &mut self.limits.positions,
        };
        *limit = rows.min(*limit);
        self.emit(Per::Token, width, |out| RowOperation::Lookup {
            table,
            index,
            out,
        })
    }

    /// Each token's row between its neighbours' rows, see `compiler/src/onnx/functions.rs`.
    pub fn neighbours(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let [input, mask, count] = inputs(node)?;
        self.require_mask(node, mask)?;
        let (input, width) = self.tokens(node, input)?;
        let count: Option<usize> = self.scalar(count);
        let count = count
            .filter(|count| count % 2 == 1 && *count <= MAX_NEIGHBOURS)
            .ok_or_else(|| other_inputs(node))?;
        self.emit(Per::Token, count * width, |out| RowOperation::Neighbours {
            input,
            before: count / 2,
            out,
        })
    }

    /// Each token's row is its predecessor's.
    pub fn previous(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let [input, mask] = inputs(node)?;
        self.require_mask(node, mask)?;
        let (input, width) = self.tokens(node, input)?;
        self.emit(Per::Token, width, |out| RowOperation::Neighbours {
            input,
            before: 1,
            out,
        })
    }

    /// A gated convolution, see `compiler/src/onnx/functions.rs`.
    pub fn gated_convolution(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let [input, mask, taps, before, bias] = inputs(node)?;
        self.require_mask(node, mask)?;
        let (input, inputs) = self.tokens(node, input)?;
        let (count, width) = self.shape(taps)?;
        self.check_width(width)?;
        let before: Option<usize> = self.scalar(before);
        let before = before
            .filter(|before| *before < count && count <= MAX_NEIGHBOURS)
            .filter(|_| width.checked_mul(3) == Some(inputs))
            .ok_or_else(|| other_inputs(node))?;
        let convolution = Convolution {
            taps: self.array(taps, count * width)?,
            before,
            bias: self.optional_array(bias, width)?,
        };
        self.emit(Per::Token, width, |out| RowOperation::GatedConvolution {
            input,
            convolution,
            out,
        })
    }

    pub fn linear(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let (input, constants, columns) = match &node.input[..] {
            [input, weights, scales, sums, bias, _] => (input, [weights, scales, sums, bias], None),
            [input, weights, scales, sums, bias, _, factors, offsets] => (
                input,
                [weights, scales, sums, bias],
                Some([factors, offsets]),
            ),
            _ => return Err(other_inputs(node)),
        };
        let input = self.whole(input)?;
        let Value {
            per, width: inputs, ..
        } = self.values[input];
        let mut layer = self.layer(inputs, constants.map(String::as_str))?;
        if let Some([factors, offsets]) = columns {
            let groups = inputs / LANES;
            let [factors, offsets] = [self.array(factors, groups)?, self.array(offsets, groups)?];
            layer.scaling = Some(InputScaling { factors, offsets });
        }
        self.emit(per, layer.outputs, |out| RowOperation::Linear {
            input,
            layer,
            out,
        })
    }

    /// Weights for an int8 linear layer.
    fn layer(&self, inputs: usize, [weights, scales, sums, bias]: [&str; 4]) -> Result<Linear> {
        self.check_width(inputs)?;
        let shape = self.tensor(weights)?.dims.clone();
        let groups = inputs / 4;
        let panels = match shape[..] {
            [panels, found, 16, 4] if usize::try_from(found) == Ok(groups) => {
                usize::try_from(panels).unwrap_or(0)
            }
            _ => {
                return Err(unsupported(&format!(
                    "weights of shape {shape:?} for {inputs} inputs"
                )));
            }
        };
        let shape = &self.tensor(scales)?.dims;
        let blocks = match shape[..] {
            // One for each output.
            [_] => 1,
            [_, blocks, _] => usize::try_from(blocks).unwrap_or(0),
            _ => 0,
        };
        if blocks == 0 || !inputs.is_multiple_of(blocks) || !(inputs / blocks).is_multiple_of(LANES)
        {
            return Err(unsupported(&format!(
                "scales of shape {shape:?} for {inputs} inputs"
            )));
        }
        let all_blocks = panels.saturating_mul(blocks);
        Ok(Linear {
            name: weights
                .strip_suffix(".panels")
                .unwrap_or(weights)
                .to_owned(),
            scaling: None,
            inputs,
            block: inputs / blocks,
            outputs: panels.saturating_mul(LANES),
            panels: self.array(weights, panels.saturating_mul(groups))?.into(),
            scales: self.array(scales, all_blocks)?,
            sums: self.array(sums, all_blocks)?,
            bias: self.array(bias, panels)?,
            activation: None,
        })
    }

    /// Per-output maximum of a linear layer over a text's tokens, without the layer's padding outputs.
    pub fn largest(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || other_inputs(node);
        let [input, mask, constants @ .., width] = &node.input[..] else {
            return Err(refuse());
        };
        self.require_mask(node, mask)?;
        let (input, inputs) = self.tokens(node, input)?;
        let layer = self.either_layer(inputs, constants)?.ok_or_else(refuse)?;
        let width: usize = self.scalar(width).unwrap_or(0);
        let panel = match layer {
            Layer::Int8(_) => LANES,
            Layer::Fp32(_) => COLUMNS,
        };
        if width == 0 || layer.outputs() != width.next_multiple_of(panel) {
            return Err(refuse());
        }
        let out = self.value(Per::Text, width);
        self.operations
            .push(Operation::Largest(Largest { input, layer, out }));
        Ok(Meaning::Largest(out))
    }

    /// A layer in int8, from its panels, scales, sums, bias and shape, or in fp32, from its weights and bias; `None` with
    /// another number of constants.
    fn either_layer(&self, inputs: usize, constants: &[String]) -> Result<Option<Layer>> {
        Ok(match constants {
            [panels, scales, sums, bias, _] => Some(Layer::Int8(
                self.layer(inputs, [panels, scales, sums, bias])?,
            )),
            [weights, bias] => {
                let layer = self.matrix(inputs, weights)?;
                let bias = Some(self.array(bias, layer.outputs)?);
                Some(Layer::Fp32(Dense { bias, ..layer }))
            }
            _ => None,
        })
    }

    /// A linear layer in fp32.
    pub fn dense(&mut self, input: &str, weights: &str) -> Result<Meaning<'a>> {
        let input = self.whole(input)?;
        let Value { per, width, .. } = self.values[input];
        let layer = self.matrix(width, weights)?;
        self.emit(per, layer.outputs, |out| RowOperation::Dense {
            input,
            layer,
            out,
        })
    }

    /// Weights in fp32, as a matrix or in panels of 32 outputs.
    fn matrix(&self, inputs: usize, weights: &str) -> Result<Dense> {
        let shape = &self.tensor(weights)?.dims;
        let sides = shape.iter().map(|side| usize::try_from(*side).unwrap_or(0));
        let (outputs, panel) = match sides.collect::<Vec<_>>()[..] {
            [found, outputs] if found == inputs => (outputs, outputs),
            [panels, found, COLUMNS] if found == inputs => {
                (panels.saturating_mul(COLUMNS), COLUMNS)
            }
            _ => (0, 0),
        };
        let size = outputs.checked_mul(inputs).filter(|size| *size > 0);
        let size = size.ok_or_else(|| {
            unsupported(&format!(
                "`{weights}` of shape {shape:?} for {inputs} inputs"
            ))
        })?;
        Ok(Dense {
            outputs,
            panel,
            weights: match panel {
                COLUMNS => self.floats(weights, size)?,
                _ => Floats::F32(self.array(weights, size)?),
            },
            bias: None,
        })
    }

    /// Adds two values, or a bias to the layer before.
    pub fn add(&mut self, left: &str, right: &str) -> Result<Meaning<'a>> {
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
        self.emit(per, width, |out| RowOperation::Add { inputs, out })
    }

    /// Adds the product of a task's adapters and an input, see `compiler/src/onnx/functions.rs`.
    pub fn adapted(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || other_inputs(node);
        let (inputs, down, up, shape) = match &node.input[..] {
            [base, input, tasks, up, _, shape] => ([base, input, tasks], None, up, shape),
            [base, input, tasks, up, _, shape, down] => {
                ([base, input, tasks], Some(down), up, shape)
            }
            _ => return Err(refuse()),
        };
        let [base, input, tasks] = inputs;
        let (base, input) = (self.whole(base)?, self.whole(input)?);
        let (
            Value {
                per,
                width: outputs,
                ..
            },
            inputs,
        ) = (self.values[base], self.values[input].width);
        if self.index(tasks)? != Index::Type || per != Per::Token || self.values[input].per != per {
            return Err(refuse());
        }
        self.check_width(inputs)?;
        self.check_width(outputs)?;
        let Some(&[count, rank]) = self.integers(shape).as_deref() else {
            return Err(refuse());
        };
        let numbers = usize::checked_mul(count, rank)
            .filter(|numbers| *numbers > 0)
            .ok_or_else(refuse)?;
        // Rows with the numbers of all tasks have zeros behind them, and so have the matrices behind their own rows.
        let rows = if down.is_some() { numbers } else { inputs };
        if numbers > rows {
            return Err(refuse());
        }
        let size = |width: usize| rows.checked_mul(width / LANES).ok_or_else(refuse);
        let adapters = Adapters {
            rank,
            down: down
                .map(|down| self.array(down, size(inputs)?))
                .transpose()?,
            up: self.array(up, size(outputs)?)?,
        };
        self.limits.types = self.limits.types.min(count + 1);
        self.emit(per, outputs, |out| RowOperation::Adapt {
            inputs: [base, input],
            adapters,
            out,
        })
    }

    /// A feed-forward part with experts, see `compiler/src/onnx/functions.rs`.
    pub fn chosen_experts(&mut self, node: &NodeProto, form: ExpertForm) -> Result<Meaning<'a>> {
        let refuse = || other_inputs(node);
        let [input, router, bias, shape, others @ ..] = &node.input[..] else {
            return Err(refuse());
        };
        self.by_row(input)?;
        let input = self.whole(input)?;
        let Value { per, width, .. } = self.values[input];
        let (gate, constants) = match (form, others) {
            (ExpertForm::Plain, constants) => (None, constants),
            (ExpertForm::Gated, [gate, constants @ ..]) => {
                let numbers: Array<f32> = self.array(gate, 2)?;
                let (alpha, limit) = (numbers[0], numbers[1]);
                (Some(LimitedGate { alpha, limit }), constants)
            }
            (ExpertForm::Gated, []) => return Err(refuse()),
        };
        let Some(&[count, top]) = self.integers(shape).as_deref() else {
            return Err(refuse());
        };
        self.check_width(width)?;
        if !(1..=count).contains(&top) || self.shape(router)? != (width, count) {
            return Err(refuse());
        }
        let of_each = constants.len() / count;
        if of_each == 0 || of_each * count != constants.len() {
            return Err(refuse());
        }
        let weights = self.array(router, width * count)?;
        // A plain form's bias is added to the result, and a gated form's to the logits.
        let (of_logits, bias, softmax) = match form {
            ExpertForm::Plain => (None, self.array(bias, width / LANES)?, RouterSoftmax::All),
            ExpertForm::Gated => {
                let zeros = vec![[0.0; LANES]; width / LANES].into();
                (Some(self.array(bias, count)?), zeros, RouterSoftmax::Chosen)
            }
        };
        let router = Router {
            layer: Dense {
                outputs: count,
                panel: count,
                weights: Floats::F32(weights),
                bias: of_logits,
            },
            top,
            softmax,
        };
        let of_expert = |constants: &[String]| {
            let (first, second) = constants.split_at(of_each / 2);
            let first = self.either_layer(width, first)?.ok_or_else(refuse)?;
            let inner = match form {
                ExpertForm::Plain => first.outputs(),
                ExpertForm::Gated => first.outputs() / 2,
            };
            self.check_width(first.outputs())?;
            self.check_width(inner)?;
            let second = self.either_layer(inner, second)?.ok_or_else(refuse)?;
            match second.outputs() == width {
                true => Ok([first, second]),
                false => Err(refuse()),
            }
        };
        let layers = constants.chunks(of_each);
        let layers = layers.map(of_expert).collect::<Result<_>>()?;
        let choices = self.value(per, (2 * top).next_multiple_of(LANES));
        let results = self.value(per, top * (width + 1));
        let out = self.value(per, width);
        self.row(
            per,
            RowOperation::Route {
                input,
                router,
                out: choices,
            },
        );
        self.operations.push(Operation::Experts(ExpertStage {
            input,
            choices,
            top,
            layers,
            gate,
            out: results,
        }));
        self.row(
            per,
            RowOperation::Combine {
                choices,
                top,
                results,
                bias,
                out,
            },
        );
        Ok(self.all(out))
    }

    /// A value with the same rows and width as `other`.
    fn same(&self, name: &str, other: ValueId) -> Result<ValueId> {
        let found = self.whole(name)?;
        match self.values[found] == self.values[other] {
            true => Ok(found),
            false => Err(unsupported(&format!(
                "`{name}`, whose rows differ from the other addend's"
            ))),
        }
    }

    pub fn norm(&self, node: &NodeProto, [gain, bias]: [&str; 2]) -> Result<Norm> {
        let width = self.length(gain)?;
        let epsilon = float(node, "epsilon").unwrap_or(1e-5);
        let centers = !node.op_type.contains("Simplified");
        self.check_width(width)?;
        let bias = match bias {
            "" => vec![[0.0; LANES]; width / LANES].into(),
            name => self.array(name, width / LANES)?,
        };
        Ok(Norm {
            centers,
            scales: node.op_type != "Affine",
            gain: self.array(gain, width / LANES)?,
            bias,
            epsilon,
        })
    }

    pub fn normalize(&mut self, [input, residual]: [&str; 2], norm: Norm) -> Result<Meaning<'a>> {
        let residual = match residual {
            "" => None,
            residual => Some(self.same(residual, self.whole(input)?)?),
        };
        let input = self.view(input)?;
        let (per, width) = (self.values[input.value].per, input.width);
        if !width.is_multiple_of(norm.gain.len() * LANES) {
            return Err(unsupported(&format!(
                "a normalization of {} values for {width}",
                norm.gain.len() * LANES
            )));
        }
        self.emit(per, width, |out| RowOperation::Norm {
            input,
            residual,
            norm,
            out,
        })
    }

    /// Rows that are split into heads, which only a per-head normalization reads, or joined again.
    pub fn heads(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let [input, shape] = &node.input[..] else {
            return Err(other_inputs(node));
        };
        let view = self.view(input)?;
        let shape: Vec<i64> = self.integers(shape).unwrap_or_default();
        let size = |widths: &[i64]| {
            widths
                .iter()
                .try_fold(1, |size: i64, it| size.checked_mul(*it))
        };
        match shape[..] {
            [0, 0, ref widths @ ..] if size(widths) == Some(view.width as i64) => {
                Ok(Meaning::Rows(view))
            }
            _ => Err(unsupported(&format!("the shape of `{}`", node.name))),
        }
    }

    /// An activation, fused into the preceding linear layer if there is one.
    pub fn activate(&mut self, function: Activation, input: &str) -> Result<Meaning<'a>> {
        let view = self.view(input)?;
        if view.width < self.values[view.value].width {
            return Ok(Meaning::Activated(function, view));
        }
        let input = self.whole(input)?;
        if let Some(Operation::Row(_, RowOperation::Linear { layer, out, .. })) =
            self.operations.last_mut()
            && *out == input
            && layer.activation.is_none()
        {
            layer.activation = Some(function);
            return Ok(self.all(input));
        }
        let Value { per, width, .. } = self.values[input];
        self.check_width(width)?;
        self.emit(per, width, |out| RowOperation::Activation {
            function,
            input,
            out,
        })
    }

    /// Multiplies by a number, or by a value of the same shape, or by the activated half of the same matrix.
    pub fn multiply(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let ([left, right], Ok(Meaning::Rows(_))) = (
            &node.input[..],
            self.meaning(node.input.first().map_or("", String::as_str)),
        ) else {
            return self.gate(node);
        };
        let input = self.whole(left)?;
        let Value { per, width, .. } = self.values[input];
        let factor = match self.constants.contains_key(right.as_str()) {
            true => Some(self.array::<f32>(right, 1)?[0]),
            false => None,
        };
        let other = match factor {
            Some(_) => input,
            None => self.same(right, input)?,
        };
        let out = self.value(per, width);
        self.row(
            per,
            match factor {
                Some(factor) => RowOperation::Scale { input, factor, out },
                None => RowOperation::Multiply {
                    inputs: [input, other],
                    out,
                },
            },
        );
        Ok(self.all(out))
    }

    /// Activates one half of a matrix, and multiplies it by the other half.
    fn gate(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || {
            unsupported(&format!(
                "the product `{}`, which does not belong to a gate",
                node.name
            ))
        };
        let [left, right] = inputs(node)?;
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
        self.emit(per, width, |out| RowOperation::Gate {
            function,
            activates_second: halves[0] > 0,
            input,
            out,
        })
    }

    pub fn split(&mut self, node: &'a NodeProto) -> Result<()> {
        let name = node.input.first().map(String::as_str).unwrap_or_default();
        let View {
            value,
            offset,
            width,
        } = self.view(name)?;
        let refuse = || unsupported(&format!("the arguments of `{}`", node.name));
        let parts = node.output.len();
        let widths: Vec<usize> = match node.input.get(1) {
            Some(lengths) => self.integers(lengths).ok_or_else(refuse)?,
            None if parts > 0 => vec![width / parts; parts],
            None => return Err(refuse()),
        };
        let total = widths
            .iter()
            .try_fold(0_usize, |sum, width| sum.checked_add(*width));
        if integer(node, "axis") != Some(-1) || widths.len() != parts || total != Some(width) {
            return Err(refuse());
        }
        let mut offset = offset;
        for (width, output) in widths.into_iter().zip(&node.output) {
            self.meanings.insert(
                output,
                Meaning::Rows(View {
                    value,
                    offset,
                    width,
                }),
            );
            offset += width;
        }
        Ok(())
    }
}
