//! Static embeddings, and fastText's classifiers: a text's vector is the mean over its tokens' table rows.

use std::{num::NonZeroUsize, sync::Arc};

use async_trait::async_trait;
use kivu_engine::array::Array;

use super::{
    graph::{self, data},
    label_head::LabelHead,
    model::WeightFiles,
};
use crate::{
    backend::{
        MappedFiles, Schedule, Signature,
        encoder::{EachText, EncoderBackend, EncoderCall, Row, Sequence},
        require_unchanged,
    },
    observer::record_batch,
};
use kivu_base::{
    Error, Result,
    onnx_proto::{FUNCTIONS, ModelProto, NodeProto, TensorProto},
};
use kivu_text::Encoding;

/// Calls with fewer tokens are combined: a token takes less than a tenth of a microsecond.
const MIN_CALL_TOKENS: usize = 16 * 1024;

/// Function in graphs with nothing but a table: see `compiler/src/onnx/functions.rs`.
pub const MEAN_OF_ROWS: &str = "MeanOfRows";
/// Function in graphs with nothing but an int8 table.
pub const MEAN_OF_INT8_ROWS: &str = "MeanOfInt8Rows";

/// A vector table by token id.
#[derive(Debug)]
pub struct TableModel {
    signature: Signature,
    rows: Rows,
    /// Row count.
    height: usize,
    /// Values per row.
    width: usize,
    head: Option<LabelHead>,
    mapped: Option<Arc<dyn MappedFiles>>,
}

#[derive(Debug)]
enum Rows {
    Fp32(Array<f32>),
    /// Integers, and a scale for each row.
    Int8(Array<i8>, Array<f32>),
}

impl TableModel {
    /// Whether `graph` contains only a table, and a label head if there is one.
    pub fn is_in(graph: &[u8]) -> Result<bool> {
        let model = ModelProto::from_bytes(graph)?;
        Ok(model
            .graph
            .iter()
            .flat_map(|graph| &graph.node)
            .any(is_mean))
    }

    /// Reads `graph`, with its weights in `files`.
    pub fn open(graph: &[u8], files: WeightFiles) -> Result<Self> {
        let model = ModelProto::from_bytes(graph)?;
        let graph = model.graph.unwrap_or_default();
        let signature = graph::signature(&graph)?;
        let unsupported = |what: &str| {
            Error::model(format!(
                "expected a graph with only a vector table, but found {what}"
            ))
            .with_hint("use `engine = \"onnx\"`")
        };
        let is_known =
            |node: &NodeProto| is_mean(node) || LabelHead::has(node) || node.op_type == "Identity";
        let others = !graph.node.iter().all(is_known);
        let Some(mean) = graph
            .node
            .iter()
            .find(|node| is_mean(node))
            .filter(|_| !others)
        else {
            return Err(unsupported("other operators"));
        };
        let constant = |input: usize| -> Result<&TensorProto> {
            let name = mean.input_name(input);
            graph
                .constant(name)
                .ok_or_else(|| unsupported(&format!("`{name}`, which is not a constant")))
        };
        let table = constant(0)?;
        let side = |side: i64| usize::try_from(side).ok();
        let shape = if let [height, width] = table.dims[..] {
            side(height).zip(side(width))
        } else {
            None
        };
        let Some((height, width)) = shape.filter(|(_, width)| *width > 0) else {
            return Err(unsupported(&format!("a table of shape {:?}", table.dims)));
        };
        let rows = match mean.op_type == MEAN_OF_ROWS {
            true => Rows::Fp32(Array::new(&data(table, &files.files)?)),
            false => {
                let scales = data(constant(1)?, &files.files)?;
                Rows::Int8(Array::new(&data(table, &files.files)?), Array::new(&scales))
            }
        };
        let is_complete = match &rows {
            Rows::Fp32(values) => Some(values.len()) == height.checked_mul(width),
            Rows::Int8(values, scales) => {
                Some(values.len()) == height.checked_mul(width) && scales.len() == height
            }
        };
        if !is_complete {
            return Err(unsupported(&format!(
                "a table whose data is not of shape {height} × {width}"
            )));
        }
        let head = LabelHead::open(&graph, mean, width, &files.files)?;
        Ok(Self {
            signature,
            rows,
            height,
            width,
            head,
            mapped: files.mapped,
        })
    }

    /// Graph inputs and outputs.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Runs one text, by the ids of the tokens that count.
    pub fn run(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let mut mean = vec![0.0_f32; self.width];
        for id in ids {
            let row = *id as usize;
            if row >= self.height {
                let last = self.height.saturating_sub(1);
                return Err(Error::invalid(format!(
                    "expected token ids from 0 to {last}, but found {id}"
                )));
            }
            let part = row * self.width..(row + 1) * self.width;
            match &self.rows {
                Rows::Fp32(values) => {
                    mean.iter_mut()
                        .zip(&values[part])
                        .for_each(|(sum, value)| *sum += value);
                }
                Rows::Int8(values, scales) => {
                    let scale = scales[row];
                    let values = mean.iter_mut().zip(&values[part]);
                    values.for_each(|(sum, value)| *sum += f32::from(*value) * scale);
                }
            }
        }
        let count = ids.len().max(1) as f32;
        mean.iter_mut().for_each(|sum| *sum /= count);
        let Some(head) = &self.head else {
            return Ok(mean);
        };
        let mut scores = vec![0.0_f32; head.labels];
        head.score(&mean, &mut scores);
        Ok(scores)
    }
}

fn is_mean(node: &NodeProto) -> bool {
    node.domain == FUNCTIONS && [MEAN_OF_ROWS, MEAN_OF_INT8_ROWS].contains(&node.op_type.as_str())
}

/// A table that runs on its callers' threads.
#[derive(Debug)]
pub struct TableBackend {
    threads: NonZeroUsize,
    model: Arc<TableModel>,
}

impl TableBackend {
    /// A backend that is run by at most `threads` threads at a time.
    pub fn new(model: TableModel, threads: NonZeroUsize) -> Self {
        Self {
            threads,
            model: Arc::new(model),
        }
    }
}

#[async_trait]
impl EncoderBackend for TableBackend {
    fn signature(&self) -> &Signature {
        self.model.signature()
    }

    fn schedule(&self) -> Schedule {
        Schedule::row_by_row(self.threads, MIN_CALL_TOKENS)
    }

    async fn run(&self, call: EncoderCall<'_>, each: &mut EachText<'_>) -> Result<()> {
        let deadline = call.deadline;
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        record_batch("native");
        let sequences = call.batches.iter().flatten();
        let attended = |sequence: &Sequence<'_>| {
            let Encoding {
                ids, unattended, ..
            } = sequence.encoding;
            ids[..ids.len() - unattended].to_vec()
        };
        let texts: Vec<Vec<u32>> = sequences.map(attended).collect();
        let tokens: usize = texts.iter().map(Vec::len).sum();
        let model = Arc::clone(&self.model);
        let run = move || {
            require_unchanged(model.mapped.as_deref())?;
            let rows = texts
                .iter()
                .map(|ids| model.run(ids))
                .collect::<Result<Vec<_>>>();
            require_unchanged(model.mapped.as_deref())?;
            rows
        };
        let rows = if tokens < MIN_CALL_TOKENS {
            run()?
        } else {
            deadline.off_thread(run).await?
        };
        for (text, values) in rows.iter().enumerate() {
            let row = Row {
                values,
                columns: 1,
                width: values.len(),
            };
            each(text, &vec![row; call.outputs.len()])?;
        }
        Ok(())
    }
}
