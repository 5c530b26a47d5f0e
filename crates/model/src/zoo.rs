//! Published latency profiles. With them, a well-known model can be emulated without the GPU or the
//! model's file.
//!
//! The numbers are from Tables 3 (GTX 1080 Ti) and 4 (A100) of the paper "Symphony: Optimized DNN
//! Model Serving using Deferred Batch Scheduling": the line ℓ(b) = αb + β, and the SLO that the
//! authors chose for each model. They are stored in two CSV files, which can be compared with the
//! tables row by row.

/// A GPU with published profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZooDevice {
    name: &'static str,
    csv: &'static str,
}

/// A model that was measured on a [`ZooDevice`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ZooModel {
    /// Name in the paper's spelling.
    pub name: &'static str,
    /// Cost of each additional row, α.
    pub alpha_ms: f64,
    /// Fixed cost of a batch, β.
    pub beta_ms: f64,
    /// The SLO in the paper.
    pub slo_ms: f64,
}

impl ZooDevice {
    /// Every device with published profiles.
    pub const ALL: [ZooDevice; 2] = [
        ZooDevice { name: "1080ti", csv: include_str!("../data/profiles_1080ti.csv") },
        ZooDevice { name: "a100", csv: include_str!("../data/profiles_a100.csv") },
    ];

    /// Returns the device with this name, ignoring case.
    pub fn from_name(name: &str) -> Option<ZooDevice> {
        ZooDevice::ALL.into_iter().find(|device| device.name.eq_ignore_ascii_case(name))
    }

    /// Returns the device's name, which follows `emulated:` on the command line.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Iterates over the models measured on this device, in the order of the paper's table.
    pub fn models(self) -> impl Iterator<Item = ZooModel> {
        self.csv.lines().skip(1).filter_map(parse_row)
    }

    /// Returns the model with this name, ignoring case.
    pub fn find(self, name: &str) -> Option<ZooModel> {
        self.models().find(|model| model.name.eq_ignore_ascii_case(name))
    }
}

/// Parses a line `name,alpha_ms,beta_ms,slo_ms`. Tests check that no line is skipped.
fn parse_row(line: &'static str) -> Option<ZooModel> {
    let mut fields = line.split(',');
    let name = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    Some(ZooModel { name, alpha_ms: number()?, beta_ms: number()?, slo_ms: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_both_tables_is_read() {
        for (device, rows) in ZooDevice::ALL.into_iter().zip([35, 37]) {
            assert_eq!(device.models().count(), rows, "{}", device.name());
            assert_eq!(device.csv.lines().count(), rows + 1, "{}", device.name());
            for model in device.models() {
                assert!(model.slo_ms > 0.0 && model.alpha_ms > 0.0 && model.beta_ms > 0.0, "{model:?}");
            }
        }
    }

    #[test]
    fn names_are_unique_and_found_in_any_case() {
        for device in ZooDevice::ALL {
            let mut names: Vec<_> = device.models().map(|model| model.name.to_ascii_lowercase()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), device.models().count());
        }
        let resnet = ZooDevice::from_name("1080Ti").unwrap().find("resnet50").unwrap();
        let expected = ZooModel { name: "ResNet50", alpha_ms: 2.050, beta_ms: 5.378, slo_ms: 27.0 };
        assert_eq!(resnet, expected);
        assert_eq!(ZooDevice::from_name("h100"), None);
        assert_eq!(ZooDevice::ALL[0].find("LeNet"), None);
    }
}
