//! Numbers that an engine cannot represent and sizes that a client could choose, on the engines
//! that would compute them.

use crate::common::*;
use ripieno_base::RequestSlot;
use ripieno_executor::*;
use ripieno_model::DataType;

fn whole_numbers(shape: &[i64], numbers: &[i64]) -> Tensor {
    let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    Tensor { name: "n".into(), datatype: DataType::Int64, shape: shape.to_vec(), data: data.into() }
}

fn bounded(name: &str, most: f64) -> ModelSource {
    ModelSource { ranges: vec![InputRange { tensor: "n".to_owned(), least: 0.0, most }], ..files(&[name]) }
}

#[test]
fn whole_numbers_are_right_or_refused() {
    let refused = |source: &ModelSource| cpu().engine.load(source).map(|_| ()).unwrap_err().to_string();
    for name in ["plus_huge", "square"] {
        let error = refused(&files(&[name]));
        assert!(error.contains("operator") && error.contains("use --engine onnxruntime"), "{error}");
    }
    for (name, n, answer) in [("plus_huge", 5, (1 << 40) + 5), ("square", 100_000, 10_000_000_000i64)] {
        let y = Stand::new(&onnxruntime_engine(), &files(&[name])).ask(whole_numbers(&[1, 1], &[n])).unwrap();
        assert_eq!(y[0].data[..], answer.to_le_bytes());
    }
    let square = Stand::new(&*cpu().engine, &bounded("square", 1000.0));
    let y = square.ask(whole_numbers(&[2, 1], &[1000, 3])).unwrap();
    assert_eq!(y[0].data[..], [1_000_000i64, 9].map(i64::to_le_bytes).concat());
    let error = square.model.describe(&[whole_numbers(&[1, 1], &[1001])]).unwrap_err();
    assert!(error.0.contains("input 'n' holds 1001, but the model takes 0 to 1000"), "{error}");
    let ids = cpu().engine.load(&files(&["gather"])).unwrap();
    let name = ids.inputs()[0].name.clone();
    let far = Tensor { name: name.as_str().into(), ..whole_numbers(&[1, 2], &[1, 1 << 40]) };
    let error = ids.describe(&[far]).unwrap_err();
    assert!(error.0.contains("1099511627776"), "{error}");
}

#[test]
fn a_size_that_a_request_chooses_is_bounded() {
    for engine in [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine] {
        let error = engine.load(&files(&["zeros_of"])).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("operator ConstantOfShape 'y'") && error.contains("[[input]] name = \"n\""), "{error}");
        assert!(engine.load(&bounded("zeros_of", 100_000.0)).is_err(), "its square is too large");
        let stand = Stand::new(&*engine, &bounded("zeros_of", 512.0));
        let member = TaskMember::new(RequestSlot(0), 1, entry(whole_numbers(&[1, 2], &[3, 4])));
        assert_eq!(stand.run(0, vec![member]).unwrap()[0].outputs[0].shape, [1, 3, 4]);
        assert!(stand.model.describe(&[whole_numbers(&[1, 2], &[3, 513])]).is_err());
        let misnamed = ModelSource { ranges: bounded("square", 1.0).ranges, ..files(&["mlp"]) };
        assert!(engine.load(&misnamed).map(|_| ()).unwrap_err().to_string().contains("min and max stand at input 'n'"));
    }
}
