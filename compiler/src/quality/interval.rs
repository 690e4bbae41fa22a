//! 95 % confidence intervals.

/// The normal distribution's 97.5 % quantile.
const Z: f64 = 1.959_964;

/// Wilson's interval for a share of `count` rows.
pub fn of_share(share: f64, count: usize) -> [f64; 2] {
    let count = count as f64;
    let square = Z * Z / count;
    let middle = (share + square / 2.0) / (1.0 + square);
    let half = Z / (1.0 + square) * (share * (1.0 - share) / count + square / (4.0 * count)).sqrt();
    [(middle - half).max(0.0), (middle + half).min(1.0)]
}

/// Fisher's interval for a rank correlation of `count` pairs, with Bonett and Wright's variance. At least 4 pairs.
pub fn of_correlation(correlation: f64, count: usize) -> [f64; 2] {
    let half = Z * ((1.0 + correlation * correlation / 2.0) / (count as f64 - 3.0)).sqrt();
    // The logarithm of a correlation of 1 is infinite.
    let middle = correlation.clamp(-1.0 + 1e-12, 1.0 - 1e-12).atanh();
    [(middle - half).tanh(), (middle + half).tanh()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: [f64; 2], expected: [f64; 2]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 5e-5, "{found} {expected}");
        }
    }

    #[test]
    fn shares_have_wilsons_interval() {
        close(of_share(0.9, 100), [0.825_63, 0.944_77]);
        close(of_share(1.0, 10), [0.722_47, 1.0]);
        close(of_share(0.0, 10), [0.0, 0.277_53]);
    }

    #[test]
    fn correlations_have_fishers_interval() {
        close(of_correlation(0.8, 50), [0.647_02, 0.891_07]);
        let [low, high] = of_correlation(1.0, 10);
        assert!(low > 0.99 && high <= 1.0, "{low} {high}");
    }
}
