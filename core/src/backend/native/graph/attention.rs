//! Attention: ONNX Runtime's operators, and Kivu's position-dependent functions.

use kivu_engine::{
    array::Array,
    kernel::COLUMNS,
    program::{
        Attention, AttentionWindow, DistanceBias, DistanceTables, DistanceVectors, Per, RotaryId,
        View,
    },
    rotary::{self, Lengths, MAX_POSITIONS, QueryGrowth, Rotary},
};

use super::{Meaning, Operation, Reader, float, integer, other_inputs, unsupported};
use kivu_base::{Result, onnx_proto::NodeProto};

/// Attention parameters from a node.
struct Settings {
    heads: usize,
    key_heads: usize,
    /// Factor on query-key products; by default 1 / √(head width).
    scale: Option<f32>,
    cap: Option<f32>,
    sinks: Option<Array<f32>>,
    rotary: Option<rotary::Settings>,
    window: AttentionWindow,
    bias: DistanceBias,
}

impl<'a> Reader<'a> {
    /// ONNX Runtime's attention.
    pub fn attention(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || other_inputs(node);
        let [queries, keys, values, bias, mask, others @ ..] = &node.input[..] else {
            return Err(refuse());
        };
        self.require_mask(node, mask)?;
        let heads = integer(node, "num_heads")
            .and_then(|heads| usize::try_from(heads).ok())
            .unwrap_or(0);
        let distances = match others {
            [] => DistanceBias::None,
            [none] if none.is_empty() => DistanceBias::None,
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
            cap: None,
            sinks: None,
            rotary: None,
            window: AttentionWindow::ALL,
            bias: distances,
        };
        self.attend(node, [queries, keys, values], settings)
    }

    /// Reads the distance bias called `name`.
    fn distances(&mut self, name: &str, heads: usize) -> Result<DistanceBias> {
        let Meaning::Distances(table) = self.meaning(name)? else {
            return Err(unsupported(&format!("`{name}` as an attention bias")));
        };
        let shape = &self.tensor(table)?.dims;
        let count = match shape[..] {
            [1, found, count] if usize::try_from(found) == Ok(heads) => usize::try_from(count).ok(),
            _ => None,
        };
        let Some(count) = count.filter(|count| count % 2 == 1) else {
            return Err(unsupported(&format!(
                "`{table}` of shape {shape:?} as distance values"
            )));
        };
        self.limits.length = self.limits.length.min(count / 2 + 1);
        let values = self.array(table, heads.saturating_mul(count))?;
        Ok(DistanceBias::Values {
            values,
            farthest: count / 2,
        })
    }

    /// Attention that depends on positions, see `compiler/src/onnx/functions.rs`.
    pub fn attention_by_position(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the arguments of `{}`", node.name));
        let [
            queries,
            keys,
            values,
            mask,
            ids,
            shape,
            scale,
            frequencies,
            slopes,
            others @ ..,
        ] = &node.input[..]
        else {
            return Err(refuse());
        };
        // Former versions wrote none of them.
        let mut others = others.iter().map(String::as_str);
        let [rotation, cap, sinks, growth] = [(); 4].map(|()| others.next().unwrap_or_default());
        if others.next().is_some() {
            return Err(refuse());
        }
        self.require_mask(node, mask)?;
        let shape: Vec<i64> = self.integers(shape).ok_or_else(refuse)?;
        let number = |number: i64| usize::try_from(number).ok();
        let [heads, key_heads, before, after] = shape[..] else {
            return Err(refuse());
        };
        let (Some(heads), Some(key_heads)) = (number(heads), number(key_heads)) else {
            return Err(refuse());
        };
        // A negative number means all tokens.
        let side = |side: i64| number(side).unwrap_or(usize::MAX);
        let window = AttentionWindow {
            before: side(before),
            after: side(after),
        };
        let scale: Array<f32> = self.array(scale, 1)?;
        let slopes = self.optional_array(slopes, heads)?;
        let bias = slopes.map_or(DistanceBias::None, DistanceBias::Slopes);
        let rotary = match frequencies.as_str() {
            "" => None,
            name => Some(self.rotary_settings(name, rotation, growth)?),
        };
        let cap: Option<Array<f32>> = self.optional_array(cap, 1)?;
        let sinks = self.optional_array(sinks, heads)?;
        let is_of_tokens = matches!(self.meaning(ids)?, Meaning::Ids);
        let queries_are_tokens = self.values[self.view(queries)?.value].per == Per::Token;
        if !is_of_tokens || !queries_are_tokens {
            return Err(refuse());
        }
        let settings = Settings {
            heads,
            key_heads,
            scale: Some(scale[0]),
            cap: cap.map(|cap| cap[0]),
            sinks,
            rotary,
            window,
            bias,
        };
        self.attend(node, [queries, keys, values], settings)
    }

    /// DeBERTa's attention, see `compiler/src/onnx/functions.rs`.
    pub fn disentangled_attention(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the arguments of `{}`", node.name));
        let [
            queries,
            keys,
            values,
            mask,
            ids,
            heads,
            scale,
            columns,
            tables @ ..,
        ] = &node.input[..]
        else {
            return Err(refuse());
        };
        self.require_mask(node, mask)?;
        let heads: usize = self.scalar(heads).unwrap_or(0);
        let scale: Array<f32> = self.array(scale, 1)?;
        let vectors = self.distance_vectors(columns, tables)?.ok_or_else(refuse)?;
        let head_size = self.by_row(queries)?.width.checked_div(heads);
        if !matches!(self.meaning(ids)?, Meaning::Ids) || !vectors.has_shape(heads, head_size) {
            return Err(refuse());
        }
        self.limits.length = self.limits.length.min(vectors.max_tokens());
        let settings = Settings {
            heads,
            key_heads: heads,
            scale: Some(scale[0]),
            cap: None,
            sinks: None,
            rotary: None,
            window: AttentionWindow::ALL,
            bias: DistanceBias::Vectors(vectors),
        };
        self.attend(node, [queries, keys, values], settings)
    }

    /// Tables of distance vectors for queries, and for keys, with the column of each distance; `None` if they do not
    /// fit each other.
    fn distance_vectors(
        &self,
        columns: &str,
        tables: &[String],
    ) -> Result<Option<DistanceVectors>> {
        // Copied, since the file may change.
        let columns: Array<i64> = self.array(columns, self.length(columns)?)?;
        let columns: Option<Vec<u32>> = columns
            .iter()
            .map(|column| u32::try_from(*column).ok())
            .collect();
        let Some(name) = tables.iter().find(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let side = |side: &i64| usize::try_from(*side).ok();
        let shape: Option<Vec<usize>> = self.tensor(name)?.dims.iter().map(side).collect();
        let ([keys, queries], Some(columns), Some([heads, panels, size, COLUMNS])) =
            (tables, columns, shape.as_deref())
        else {
            return Ok(None);
        };
        let length = heads
            .saturating_mul(*panels)
            .saturating_mul(*size)
            .saturating_mul(COLUMNS);
        let tables = DistanceTables {
            shape: [*heads, *panels, *size],
            keys: self.optional_array(keys, length)?,
            queries: self.optional_array(queries, length)?,
        };
        Ok(DistanceVectors::new(columns, tables))
    }

    /// Rotary settings: frequencies in one row, or in two; `rotation` has a factor for cosines and sines, and then for
    /// angles that depend on a text's length its maximum for the first row, and the base's growth; `growth` has the slope and
    /// the period of factors for queries.
    fn rotary_settings(
        &self,
        name: &str,
        rotation: &str,
        growth: &str,
    ) -> Result<rotary::Settings> {
        let refuse = || unsupported(&format!("the parameters `{rotation}`"));
        let (rows, pairs) = self.shape(name)?;
        let frequencies: Array<f32> = self.array(name, rows.saturating_mul(pairs))?;
        let parameters = match rotation {
            "" => vec![1.0],
            rotation => self
                .array::<f32>(rotation, self.length(rotation)?)?
                .to_vec(),
        };
        let tokens = |positions: f32| Some(positions as usize).filter(|positions| *positions > 0);
        let (amplitude, lengths) = match (rows, &parameters[..]) {
            (1, [amplitude]) => (*amplitude, Lengths::Alike),
            (2, [amplitude, positions]) => {
                let positions = tokens(*positions).ok_or_else(refuse)?;
                (
                    *amplitude,
                    Lengths::Other {
                        frequencies: frequencies[pairs..].to_vec(),
                        positions,
                    },
                )
            }
            (1, [amplitude, positions, factor]) if pairs > 1 => {
                let positions = tokens(*positions).ok_or_else(refuse)?;
                (
                    *amplitude,
                    Lengths::Growing {
                        factor: *factor,
                        positions,
                    },
                )
            }
            _ => return Err(refuse()),
        };
        let growth = match growth {
            "" => None,
            name => {
                let numbers = self.array::<f32>(name, 2)?;
                Some(QueryGrowth {
                    slope: numbers[0],
                    period: tokens(numbers[1]).ok_or_else(refuse)?,
                })
            }
        };
        Ok(rotary::Settings {
            frequencies: frequencies[..pairs].to_vec(),
            amplitude,
            lengths,
            growth,
        })
    }

    /// Adds a rotary embedding, unless a layer has added it before.
    fn rotary(&mut self, settings: rotary::Settings) -> RotaryId {
        self.limits.length = self.limits.length.min(MAX_POSITIONS);
        let known = self
            .rotaries
            .iter()
            .position(|rotary| *rotary.settings() == settings);
        let id = known.unwrap_or(self.rotaries.len());
        if known.is_none() {
            self.rotaries.push(Rotary::new(settings));
        }
        id
    }

    fn attend(
        &mut self,
        node: &NodeProto,
        names: [&str; 3],
        settings: Settings,
    ) -> Result<Meaning<'a>> {
        let Settings {
            heads,
            key_heads,
            scale,
            cap,
            sinks,
            rotary,
            window,
            bias,
        } = settings;
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
        let (rows, size) = (per(queries), queries.width / heads);
        let rotary = match rotary {
            Some(rotary) if 2 * rotary.frequencies.len() > size => {
                return Err(unsupported(&format!("the frequencies of `{}`", node.name)));
            }
            Some(rotary) => Some(self.rotary(rotary)),
            None => None,
        };
        let scale = scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt());
        let out = self.value(rows, queries.width);
        self.attended.insert(out);
        self.operations.push(Operation::Attention(Attention {
            queries,
            keys,
            values,
            heads,
            key_heads,
            scale,
            cap,
            sinks,
            rotary,
            window,
            bias,
            out,
        }));
        Ok(self.all(out))
    }
}
