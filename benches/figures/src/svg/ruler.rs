//! Maps values to pixels along an axis, and labels round values.

use crate::number::short;
use crate::plot::Scale;

/// Maximum number of ticks on a linear axis.
const TICKS_MAX: f64 = 8.0;

/// An axis in pixels.
#[derive(Debug)]
pub(super) struct Ruler {
    scale: Scale,
    /// Values at the ends, or their logarithms.
    start: f64,
    end: f64,
    /// Pixels of the ends.
    first: f64,
    last: f64,
}

impl Ruler {
    /// An axis for these values between two pixels.
    pub(super) fn new(
        scale: Scale,
        values: impl Iterator<Item = f64>,
        first: f64,
        last: f64,
    ) -> Self {
        let (min, max) = values
            .filter_map(|value| position(scale, value))
            .fold((f64::MAX, f64::MIN), |(min, max), at| (min.min(at), max.max(at)));
        let (start, end) = if min > max { (0.0, 1.0) } else { (min, max) };
        let end = if end > start { end } else { start + 1.0 };
        Self { scale, start, end, first, last }
    }

    /// The same axis, starting at 0 if it is linear, or else at a power of 10 below all values.
    pub(super) fn starting_at_origin(self) -> Self {
        let start = match self.scale {
            Scale::Linear => self.start.min(0.0),
            Scale::Logarithmic => (self.start - 0.1).floor(),
        };
        Self { start, ..self }
    }

    /// Pixel of a value. `None` if the axis cannot show it.
    pub(super) fn pixel(&self, value: f64) -> Option<f64> {
        Some(self.pixel_at(position(self.scale, value)?))
    }

    /// Pixel of a value, or of the nearest end.
    pub(super) fn pixel_within(&self, value: f64) -> f64 {
        let at = position(self.scale, value).unwrap_or(self.start);
        self.pixel_at(at.clamp(self.start, self.end))
    }

    fn pixel_at(&self, position: f64) -> f64 {
        let share = (position - self.start) / (self.end - self.start);
        self.first + share * (self.last - self.first)
    }

    /// Pixels and labels of round values.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let logarithmic = match self.scale {
            Scale::Linear => Vec::new(),
            Scale::Logarithmic => self.logarithmic_ticks(),
        };
        // A short logarithmic axis has no two round values: equal steps between its ends are better than none.
        let ticks = if logarithmic.len() > 1 { logarithmic } else { self.linear_ticks() };
        ticks.into_iter().map(|(at, label)| (self.pixel_at(at), label)).collect()
    }

    fn linear_ticks(&self) -> Vec<(f64, String)> {
        let step = round_step((self.end - self.start) / TICKS_MAX);
        let slack = step * 1e-9;
        let first = ((self.start - slack) / step).ceil() as i64;
        let last = ((self.end + slack) / step).floor() as i64;
        let tick = |number: i64| {
            let at = number as f64 * step;
            let label = match self.scale {
                Scale::Linear => label(at, step),
                Scale::Logarithmic => significant(10_f64.powf(at)),
            };
            (at, label)
        };
        (first..=last).map(tick).collect()
    }

    /// Ticks at powers of 10, and at 2 and 5 times these if there is room.
    fn logarithmic_ticks(&self) -> Vec<(f64, String)> {
        let decades = self.start.floor() as i32..=self.end.ceil() as i32;
        let factors: &[f64] = if self.end - self.start > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        decades
            .flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)))
            .map(|value| (value.log10(), significant(value)))
            .filter(|(at, _)| (self.start - 1e-9..=self.end + 1e-9).contains(at))
            .collect()
    }
}

/// Position of a value along an axis, in the axis's unit.
fn position(scale: Scale, value: f64) -> Option<f64> {
    let at = match scale {
        Scale::Linear => value,
        Scale::Logarithmic => value.log10(),
    };
    at.is_finite().then_some(at)
}

/// The smallest of 1, 2 and 5 times a power of 10 that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

/// A value with three significant digits.
pub(super) fn significant(value: f64) -> String {
    label(value, value.abs() / 100.0)
}

/// A value to the precision of `step`, without trailing zeros: 0.25, 1,200, 2.5 M.
fn label(value: f64, step: f64) -> String {
    if value.abs() >= 1e6 {
        return format!("{} M", label(value / 1e6, step / 1e6));
    }
    let digits = if step > 0.0 { (-step.log10().floor()).clamp(0.0, 12.0) as usize } else { 0 };
    if digits == 0 || value.abs() >= 1e3 {
        let text = short(value.round());
        return text.split_once('.').map_or(text.clone(), |(whole, _zeros)| whole.to_owned());
    }
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: [f64; 2]) -> Vec<String> {
        let ruler = Ruler::new(scale, values.into_iter(), 0.0, 100.0);
        ruler.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::Linear, [0.0, 1.0]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(Scale::Linear, [30.0, 90.0]), ["30", "40", "50", "60", "70", "80", "90"]);
        assert_eq!(
            labels(Scale::Linear, [0.0, 0.011]),
            ["0", "0.002", "0.004", "0.006", "0.008", "0.01"]
        );
        assert_eq!(
            labels(Scale::Linear, [0.0, 3e6]),
            ["0", "500,000", "1 M", "1.5 M", "2 M", "2.5 M", "3 M"]
        );
        assert_eq!(labels(Scale::Logarithmic, [0.01, 200.0]), ["0.01", "0.1", "1", "10", "100"]);
        assert_eq!(labels(Scale::Logarithmic, [1e6, 1e7]), ["1 M", "2 M", "5 M", "10 M"]);
        assert!(labels(Scale::Logarithmic, [2.1, 2.9]).len() > 1);
    }

    #[test]
    fn values_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.001_234, "0.00123"),
            (0.25, "0.25"),
            (38.04, "38"),
            (123.4, "123"),
            (12_345.0, "12,345"),
            (2_340_000.0, "2.34 M"),
            (-1.5, "-1.5"),
        ] {
            assert_eq!(significant(value), text);
        }
    }

    #[test]
    fn values_have_pixels() {
        let ruler = Ruler::new(Scale::Logarithmic, [1.0, 100.0].into_iter(), 200.0, 0.0);
        assert_eq!(
            [1.0, 10.0, 0.0].map(|value| ruler.pixel(value)),
            [Some(200.0), Some(100.0), None]
        );
        assert_eq!([0.0, 1e9].map(|value| ruler.pixel_within(value)), [200.0, 0.0]);
        let none = Ruler::new(Scale::Linear, [].into_iter(), 0.0, 1.0);
        assert_eq!(none.pixel(0.5), Some(0.5));
    }
}
