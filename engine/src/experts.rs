//! A feed-forward part with experts: a router chooses some of them for each row.

use crate::{
    kernel::{Kernel, LANES},
    linear::{Quantized, dense, linear},
    math::exp,
    program::ExpertLayers,
};

/// Sums the chosen experts' results for each row, each times its weight, and adds the bias.
#[inline(always)]
pub fn pass_experts<K: Kernel>(
    kernel: K,
    input: &[f32],
    part: &ExpertLayers,
    quantized: &mut Quantized,
    out: &mut [f32],
) {
    let (width, count) = (part.router.inputs(), part.experts.len());
    let rows = input.len() / width;
    let mut weights = vec![0.0; rows * count];
    dense(kernel, input, &part.router, &mut weights);
    for weights in weights.chunks_exact_mut(count) {
        soften(kernel, weights);
        keep_largest(weights, part.top);
    }
    let bias = part.bias.as_flattened();
    for out in out.chunks_exact_mut(bias.len()) {
        out.copy_from_slice(bias);
    }
    let (mut chosen, mut inputs) = (Vec::new(), Vec::new());
    let (mut inner, mut results) = (Vec::new(), Vec::new());
    for (expert, [first, second]) in part.experts.iter().enumerate() {
        chosen.clear();
        chosen.extend((0..rows).filter(|row| weights[row * count + expert] > 0.0));
        if chosen.is_empty() {
            continue;
        }
        inputs.clear();
        for row in &chosen {
            inputs.extend_from_slice(&input[row * width..][..width]);
        }
        inner.resize(chosen.len() * first.outputs, 0.0);
        linear(
            kernel,
            &inputs,
            first,
            0..first.outputs / LANES,
            quantized,
            &mut inner,
        );
        results.resize(chosen.len() * second.outputs, 0.0);
        linear(
            kernel,
            &inner,
            second,
            0..second.outputs / LANES,
            quantized,
            &mut results,
        );
        for (row, result) in chosen.iter().zip(results.chunks_exact(second.outputs)) {
            let weight = kernel.splat(weights[row * count + expert]);
            let out = &mut out[row * second.outputs..][..second.outputs];
            for (out, result) in out.as_chunks_mut().0.iter_mut().zip(result.as_chunks().0) {
                let total = kernel.mul_add(weight, kernel.load(result), kernel.load(out));
                kernel.store(total, out);
            }
        }
    }
}

/// Softmax.
#[inline(always)]
fn soften<K: Kernel>(kernel: K, logits: &mut [f32]) {
    let largest = logits
        .iter()
        .fold(f32::MIN, |largest, logit| largest.max(*logit));
    let mut sum = 0.0;
    for part in logits.chunks_mut(LANES) {
        let mut lanes = [f32::MIN; LANES];
        lanes[..part.len()].copy_from_slice(part);
        let powers = exp(
            kernel,
            kernel.sub(kernel.load(&lanes), kernel.splat(largest)),
        );
        kernel.store(powers, &mut lanes);
        part.copy_from_slice(&lanes[..part.len()]);
        sum += part.iter().sum::<f32>();
    }
    logits.iter_mut().for_each(|power| *power /= sum);
}

/// Sets all weights to 0 but the largest; of equal ones, the first.
#[inline(always)]
fn keep_largest(weights: &mut [f32], count: usize) {
    for place in 0..weights.len() {
        let own = weights[place];
        // A weight that is 0 by now was smaller.
        let larger =
            |(other, weight): (usize, &f32)| *weight > own || *weight == own && other < place;
        if weights.iter().enumerate().filter(|it| larger(*it)).count() >= count {
            weights[place] = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{InstructionSet, KernelFn};

    struct Soften(Vec<f32>);

    impl KernelFn for Soften {
        type Output = Vec<f32>;

        #[inline(always)]
        fn call<K: Kernel>(mut self, kernel: K) -> Vec<f32> {
            soften(kernel, &mut self.0);
            self.0
        }
    }

    #[test]
    fn the_largest_weights_are_kept() {
        let kept = |mut weights: Vec<f32>, count| {
            keep_largest(&mut weights, count);
            weights
        };
        assert_eq!(kept(vec![0.1, 0.4, 0.2, 0.3], 2), [0.0, 0.4, 0.0, 0.3]);
        assert_eq!(kept(vec![0.25; 4], 2), [0.25, 0.25, 0.0, 0.0]);
        assert_eq!(kept(vec![0.5, 0.5], 2), [0.5, 0.5]);
        assert_eq!(kept(vec![0.2, 0.8], 1), [0.0, 0.8]);
    }

    #[test]
    fn weights_are_a_softmax_on_all_processors() {
        let logits: Vec<f32> = (0..20)
            .map(|place| (place * 7 % 11) as f32 / 3.0 - 1.0)
            .collect();
        let powers: Vec<f64> = logits.iter().map(|logit| f64::from(*logit).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let all: Vec<Vec<f32>> = InstructionSet::available()
            .map(|it| it.call(Soften(logits.clone())))
            .collect();
        for found in &all {
            assert_eq!(found, &all[0]);
            for (found, power) in found.iter().zip(&powers) {
                assert!((f64::from(*found) - power / sum).abs() < 1e-6);
            }
        }
    }
}
