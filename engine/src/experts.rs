//! A router for a feed-forward part with experts.

use crate::{
    kernel::{Kernel, LANES, RowsMut},
    linear::dense,
    math::exp,
    program::{Router, RouterSoftmax},
};

/// Writes the numbers of each row's experts, in rising order, and then their weights.
#[inline(always)]
pub fn route<K: Kernel>(kernel: K, input: &[f32], router: &Router, out: RowsMut<'_>) {
    let RowsMut { values, stride } = out;
    let Router {
        layer,
        top,
        softmax,
    } = router;
    let mut logits = vec![0.0; input.len() / layer.inputs() * layer.outputs];
    dense(kernel, input, layer, &mut logits);
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    let rows = logits.chunks_exact_mut(layer.outputs);
    for (logits, out) in rows.zip(values.chunks_exact_mut(stride)) {
        choose(logits, *top, &mut chosen);
        if *softmax == RouterSoftmax::All {
            soften(kernel, logits);
        }
        weights.clear();
        weights.extend(chosen.iter().map(|expert| logits[*expert]));
        if *softmax == RouterSoftmax::Chosen {
            soften(kernel, &mut weights);
        }
        for (number, expert) in out.iter_mut().zip(&chosen) {
            *number = *expert as f32;
        }
        out[*top..2 * top].copy_from_slice(&weights);
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

/// The places of the largest `count` logits, in rising order; of equal ones, the first.
#[inline(always)]
fn choose(logits: &[f32], count: usize, chosen: &mut Vec<usize>) {
    chosen.clear();
    for _ in 0..count {
        let mut best = None;
        for (place, logit) in logits.iter().enumerate() {
            let is_larger = best.is_none_or(|best: usize| *logit > logits[best]);
            if is_larger && !chosen.contains(&place) {
                best = Some(place);
            }
        }
        chosen.extend(best);
    }
    chosen.sort_unstable();
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
    fn the_largest_logits_are_chosen() {
        let chosen = |logits: &[f32], count| {
            let mut chosen = Vec::new();
            choose(logits, count, &mut chosen);
            chosen
        };
        assert_eq!(chosen(&[0.1, 0.4, 0.2, 0.3], 2), [1, 3]);
        assert_eq!(chosen(&[0.25; 4], 2), [0, 1]);
        assert_eq!(chosen(&[0.5, 0.5], 2), [0, 1]);
        assert_eq!(chosen(&[-2.0, -1.0], 1), [1]);
        assert_eq!(chosen(&[f32::NAN, 1.0, f32::NAN], 2), [0, 1]);
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
