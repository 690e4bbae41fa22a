//! GLiClass's head: a logit per label, from the text's vector and the label's.
//!
//! All tokens that are pooled have the word number 1: their sum or mean is the text's vector.

use super::word_scores::{self, divided, layer, linear, listed, rows};
use crate::onnx::{GraphBuilder, Value, data_type, layers::Layers};
use kivu::{Error, Result};

/// Added to a vector's length before it is divided by it, as in the package `gliclass`.
const EPSILON: f32 = 1e-8;
/// Factor for logits of normalized vectors.
const SCALE: &str = "model.logit_scale";
/// Layers on a text's and a label's vector, concatenated.
const LAYERS: &str = "model.scorer.mlp";
/// Number of constants that all forms have.
const OWN: usize = 10;

/// A head's form.
#[derive(Clone, Copy, Debug)]
pub struct TextHead {
    /// Width between the two layers on each vector.
    pub hidden: usize,
    /// Whether tokens are averaged, rather than added up.
    pub is_mean: bool,
    /// Whether both vectors are normalized.
    pub is_normalized: bool,
    pub pairs: Pairs,
}

/// How a text's and a label's vector are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Their dot product.
    Dot,
    /// Layers on both vectors and on their product.
    Products,
    /// Layers on both vectors, concatenated.
    Layers,
}

impl TextHead {
    /// Logits by label, with the axes of span logits, from label vectors, word vectors and word numbers.
    pub fn logits(
        &self,
        graph: &mut GraphBuilder,
        vectors: [&Value; 3],
        constants: &[&Value],
    ) -> Value {
        let (own, others) = constants.split_at(OWN);
        let vectors = self.vectors(graph, vectors, own);
        let [text, labels] = vectors.each_ref();
        let logits = match self.pairs {
            Pairs::Dot => {
                let labels = graph.transpose(labels, &[0, 2, 1]);
                let logits = graph.matmul(text, &labels);
                let last = graph.last_axis();
                graph.unsqueeze(&logits, &last)
            }
            Pairs::Products => word_scores::logits(graph, [text, labels], listed(others)),
            Pairs::Layers => pair_logits(graph, [text, labels], listed(others)),
        };
        match self.is_normalized {
            true => graph.mul(&logits, own[1]),
            false => logits,
        }
    }

    /// Constants for both vectors, in the order in which the native engine reads them.
    pub fn constants(&self, layers: &mut Layers<'_>, width: usize) -> Result<[Value; OWN]> {
        let form = [self.is_mean, self.is_normalized].map(i64::from);
        let form = layers.graph.integers("text_head", &form);
        // Models that do not normalize do not need it.
        let scale = match self.is_normalized || layers.weights.has(SCALE) {
            true => layers.weights.take_whole(SCALE, &[])?.values.clone(),
            false => vec![1.0],
        };
        let scale = layers.graph.floats(SCALE, &[1], &scale);
        let mut of = |name: &str| {
            let [w0, b0] = layer(
                layers,
                &format!("model.{name}.linear_1"),
                [width, self.hidden],
            )?;
            let [w1, b1] = layer(
                layers,
                &format!("model.{name}.linear_2"),
                [self.hidden, width],
            )?;
            Ok::<_, Error>([w0, b0, w1, b1])
        };
        let ([t0, t1, t2, t3], [l0, l1, l2, l3]) =
            (of("text_projector")?, of("classes_projector")?);
        Ok([form, scale, t0, t1, t2, t3, l0, l1, l2, l3])
    }

    /// The text's and the labels' vectors, from label vectors, word vectors and word numbers.
    fn vectors(
        &self,
        graph: &mut GraphBuilder,
        [labels, texts, words]: [&Value; 3],
        constants: &[&Value],
    ) -> [Value; 2] {
        let mut texts = texts.clone();
        if self.is_mean {
            let [one, two] = [1, 2].map(|axis| graph.integers(&format!("axis_{axis}"), &[axis]));
            let is_pooled = graph.cast(words, data_type::BOOL);
            let is_pooled = graph.float(&is_pooled);
            let count = graph.reduce_keeping("ReduceSum", &[&is_pooled, &one]);
            let count = graph.unsqueeze(&count, &two);
            texts = graph.div(&texts, &count);
        }
        let [t0, t1, t2, t3, l0, l1, l2, l3] = listed(&constants[2..]);
        [(&texts, [t0, t1, t2, t3]), (labels, [l0, l1, l2, l3])].map(|(rows, [w0, b0, w1, b1])| {
            let rows = linear(graph, rows, [w0, b0]);
            let rows = graph.microsoft("Gelu", &[&rows], vec![]);
            let rows = linear(graph, &rows, [w1, b1]);
            if !self.is_normalized {
                return rows;
            }
            let last = graph.last_axis();
            let epsilon = graph.scalar("length_epsilon", EPSILON);
            let length = graph.reduce_keeping("ReduceL2", &[&rows, &last]);
            let length = graph.add(&length, &epsilon);
            graph.div(&rows, &length)
        })
    }
}

/// Three layers: the first one's parts for texts, with its bias, and for labels, and both others.
pub fn pair_layers(layers: &mut Layers<'_>, width: usize) -> Result<[Value; 7]> {
    let [wide, narrow] = [0, 2].map(|place| rows(layers, &format!("{LAYERS}.{place}.weight")));
    let parts = ["text", "label"];
    let ([of_text, of_label], bias) =
        divided(layers, &format!("{LAYERS}.0"), parts, [width, wide])?;
    let [m0, m1] = layer(layers, &format!("{LAYERS}.2"), [wide, narrow])?;
    let [s0, s1] = layer(layers, &format!("{LAYERS}.4"), [narrow, 1])?;
    Ok([of_text, bias, of_label, m0, m1, s0, s1])
}

fn pair_logits(
    graph: &mut GraphBuilder,
    [text, labels]: [&Value; 2],
    constants: [&Value; 7],
) -> Value {
    let [of_text, bias, of_label, m0, m1, s0, s1] = constants;
    let [one, two] = [1, 2].map(|axis| graph.integers(&format!("axis_{axis}"), &[axis]));
    let text = linear(graph, text, [of_text, bias]);
    let text = graph.unsqueeze(&text, &two);
    let labels = graph.matmul(labels, of_label);
    let labels = graph.unsqueeze(&labels, &one);
    let sums = graph.add(&text, &labels);
    let sums = graph.relu(&sums);
    let middle = linear(graph, &sums, [m0, m1]);
    let middle = graph.relu(&middle);
    linear(graph, &middle, [s0, s1])
}
