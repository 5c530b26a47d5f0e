//! Tensors in shared memory, on both protocols, and clients that misuse it.

use crate::access::Scratch;
use crate::grpc::infer_request;
use crate::support::{Reply, Running, config, scripted};
use hyper::StatusCode;
use ripieno_server::{AccessConfig, ServerConfig, SharedMemory, TokenSource};
use ripieno_wire::proto::inference::infer_parameter::ParameterChoice;
use ripieno_wire::proto::inference::model_infer_request::InferRequestedOutputTensor;
use ripieno_wire::proto::inference::*;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use tonic::Code;

/// A shared memory object, removed on drop.
struct Object(String);

impl Object {
    fn new(content: &[u8]) -> Object {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let object = Object(format!("ripieno-regions-{}-{number}", std::process::id()));
        fs::write(object.path(), content).unwrap();
        object
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/dev/shm").join(&self.0)
    }

    fn content(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    fn resize(&self, size: u64) {
        fs::OpenOptions::new().write(true).open(self.path()).unwrap().set_len(size).unwrap();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
    }
}

async fn sharing(shared_memory: SharedMemory, tokens: Option<TokenSource>) -> Running {
    let access = AccessConfig { shared_memory, tokens, ..AccessConfig::default() };
    scripted(ServerConfig { access, ..config() }).await.0
}

async fn open() -> Running {
    sharing(SharedMemory::Local, None).await
}

impl Running {
    async fn register(&self, name: &str, body: Value) -> Reply {
        self.post(&format!("/v2/systemsharedmemory/region/{name}/register"), &[], body.to_string()).await
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Builds a request to the echo model "simple" with input x and output y, each in a region.
fn request(input: Value, output: Value) -> Value {
    json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": input}],
        "outputs": [{"name": "y", "parameters": output}],
    })
}

fn place(region: &str, offset: impl Into<Value>, size: impl Into<Value>) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset.into(), "shared_memory_byte_size": size.into()})
}

#[tokio::test]
async fn tensors_are_read_from_and_written_to_regions() {
    let server = open().await;
    let (object, bytes) = (Object::new(&[0; 64]), floats(&[1.5, -2.0]));
    fs::write(object.path(), [&[7; 16], &bytes[..], &[7; 40]].concat()).unwrap();
    let registered = server.register("r", json!({"key": format!("/{}", object.0), "offset": 8, "byte_size": 48})).await;
    assert_eq!((registered.status, registered.body.len()), (StatusCode::OK, 0));
    let answer = server.infer("simple", &request(place("r", 8, 8), place("r", 24, 20))).await;
    assert_eq!(answer.json()["outputs"], json!([{"name": "y", "datatype": "FP32", "shape": [1, 2]}]));
    assert_eq!(object.content(), [&[7; 16], &bytes[..], &[7; 8], &bytes, &[7; 24]].concat());
    // One tensor may be in a region and the other in the message.
    let mut mixed = request(place("r", 8, 8), json!({}));
    mixed["outputs"][0]["parameters"] = json!({"binary_data": false});
    assert_eq!(server.infer("simple", &mixed).await.json()["outputs"][0]["data"], json!([1.5, -2.0]));

    let status = server.get("/v2/systemsharedmemory/status").await.json();
    let row = json!([{"name": "r", "key": format!("/{}", object.0), "offset": 8, "byte_size": 48}]);
    assert_eq!(status, row);
    assert_eq!(server.get("/v2/systemsharedmemory/region/r/status").await.json(), row);
    let again = server.register("r", json!({"key": object.0, "byte_size": 8})).await;
    assert_eq!(
        (again.status, again.error()),
        (StatusCode::BAD_REQUEST, "shared memory region 'r' already in manager".into())
    );
    for path in ["region/r/unregister", "region/r/unregister", "unregister"] {
        assert_eq!(server.post(&format!("/v2/systemsharedmemory/{path}"), &[], "").await.status, StatusCode::OK);
    }
    assert_eq!(server.get("/v2/systemsharedmemory/region/r/status").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/v2/systemsharedmemory/status").await.json(), json!([]));
    assert_eq!(server.get("/v2/cudasharedmemory/status").await.json(), json!([]));
    assert_eq!(server.post("/v2/cudasharedmemory/unregister", &[], "").await.status, StatusCode::OK);
    let cuda = server.post("/v2/cudasharedmemory/region/r/register", &[], "{}").await;
    assert_eq!(cuda.status, StatusCode::NOT_IMPLEMENTED);
    assert!(cuda.error().contains("use system shared memory"));
    let extensions = server.get("/v2").await.json()["extensions"].to_string();
    assert!(extensions.contains("\"system_shared_memory\"") && !extensions.contains("cuda"), "{extensions}");
}

#[tokio::test]
async fn grpc_does_the_same() {
    let server = open().await;
    let (object, bytes) = (Object::new(&[0; 16]), floats(&[3.0, 4.0]));
    fs::write(object.path(), [&bytes[..], &[0; 8]].concat()).unwrap();
    let mut client = server.grpc().await;
    let region =
        SystemSharedMemoryRegisterRequest { name: "r".into(), key: object.0.clone(), offset: 0, byte_size: 16 };
    client.system_shared_memory_register(region.clone()).await.unwrap();
    let again = client.system_shared_memory_register(region).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let place = |offset| {
        let region = ("shared_memory_region".to_owned(), parameter(ParameterChoice::StringParam("r".into())));
        let size = ("shared_memory_byte_size".to_owned(), parameter(ParameterChoice::Int64Param(8)));
        let offset = ("shared_memory_offset".to_owned(), parameter(ParameterChoice::Int64Param(offset)));
        [region, size, offset].into_iter().collect()
    };
    let mut request = infer_request("simple", "");
    request.raw_input_contents.clear();
    request.inputs[0].parameters = place(0);
    request.outputs = vec![InferRequestedOutputTensor { name: "y".into(), parameters: place(8) }];
    let answer = client.model_infer(request.clone()).await.unwrap().into_inner();
    assert_eq!((answer.outputs[0].shape.as_slice(), answer.raw_output_contents[0].len()), (&[1, 2][..], 0));
    assert_eq!(object.content(), bytes.repeat(2));
    let mut both = request.clone();
    both.raw_input_contents = infer_request("", "").raw_input_contents;
    assert_eq!(client.model_infer(both).await.unwrap_err().code(), Code::InvalidArgument);

    let status = |name: &str| SystemSharedMemoryStatusRequest { name: name.into() };
    let found = client.system_shared_memory_status(status("")).await.unwrap().into_inner().regions;
    assert_eq!((found.len(), found["r"].byte_size), (1, 16));
    client.system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest::default()).await.unwrap();
    assert_eq!(client.system_shared_memory_status(status("r")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(client.model_infer(request).await.unwrap_err().code(), Code::NotFound);
    client.cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest::default()).await.unwrap();
    let cuda = client.cuda_shared_memory_register(CudaSharedMemoryRegisterRequest::default()).await.unwrap_err();
    assert_eq!(cuda.code(), Code::Unimplemented);
}

#[tokio::test]
async fn registering_a_missing_object_is_refused() {
    let server = open().await;
    let object = Object::new(&[0; 16]);
    let link = Object::new(&[]);
    fs::remove_file(link.path()).unwrap();
    std::os::unix::fs::symlink(object.path(), link.path()).unwrap();
    let folder = Object::new(&[]);
    fs::remove_file(folder.path()).unwrap();
    fs::create_dir(folder.path()).unwrap();
    let region = |key: &str, offset: Value, size: Value| json!({"key": key, "offset": offset, "byte_size": size});
    let long = "k".repeat(256);
    let refused = [
        region(&object.0, json!(0), json!(17)),
        region(&object.0, json!(16), json!(1)),
        region(&object.0, json!(u64::MAX), json!(1)),
        region(&object.0, json!(1), json!(u64::MAX)),
        region(&object.0, json!(1_u64 << 63), json!(1_u64 << 63)),
        region(&object.0, json!(-1), json!(8)),
        region(&object.0, json!(0), json!(0)),
        region("no-such-object-of-ripieno", json!(0), json!(8)),
        region(&format!("../shm/{}", object.0), json!(0), json!(8)),
        region(&format!("//{}", object.0), json!(0), json!(8)),
        region(&format!("{}\0", object.0), json!(0), json!(8)),
        region("/dev/shm/x", json!(0), json!(8)),
        region("../../etc/passwd", json!(0), json!(8)),
        region("..", json!(0), json!(8)),
        region(".", json!(0), json!(8)),
        region("", json!(0), json!(8)),
        region("/", json!(0), json!(8)),
        region(&long, json!(0), json!(8)),
        region(&link.0, json!(0), json!(8)),
        region(&folder.0, json!(0), json!(8)),
    ];
    for body in refused {
        let reply = server.register("r", body.clone()).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}");
    }
    fs::remove_dir(folder.path()).unwrap();
    let well = region(&object.0, json!(0), json!(16));
    for name in ["..", "a%2Fb", "%00"] {
        // Names may contain any characters.
        assert_eq!(server.register(name, well.clone()).await.status, StatusCode::OK, "{name}");
    }
    assert_eq!(server.register(&"n".repeat(256), well).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn requests_cannot_leave_their_region() {
    let server = open().await;
    let object = Object::new(&[0; 64]);
    assert_eq!(
        server.register("r", json!({"key": object.0, "offset": 8, "byte_size": 16})).await.status,
        StatusCode::OK
    );
    let there = || place("r", 0, 8);
    let cases = [
        (place("r", 9, 8), there(), "not within shared memory region 'r' of 16 bytes"),
        (place("r", 0, 17), there(), "not within"),
        (place("r", u64::MAX, 8), there(), "not within"),
        (place("r", 8, u64::MAX), there(), "not within"),
        (place("r", -1, 8), there(), "shared_memory_offset is -1; it must be a number of bytes"),
        (place("r", 0, 4), there(), "expected 8 bytes for shape [1, 2] of FP32, got 4"),
        (place("r", 0, 12), there(), "expected 8 bytes"),
        (place("s", 0, 8), there(), "Unable to find shared memory region: 's'"),
        (place("../r", 0, 8), there(), "Unable to find"),
        (there(), place("s", 0, 8), "Unable to find shared memory region: 's'"),
        (there(), place("r", 12, 8), "not within"),
        (there(), place("r", 0, 4), "output 'y' (4 bytes) should be at least 8 bytes to hold the results"),
    ];
    for (input, output, wanted) in cases {
        let reply = server.infer("simple", &request(input.clone(), output.clone())).await;
        assert!(reply.status.is_client_error(), "{input} {output}: {}", reply.status);
        assert!(reply.error().contains(wanted), "{input} {output}: {}", reply.error());
    }
    // A shape that exceeds the limit of a request is refused before allocation.
    let huge = Object::new(&[]);
    huge.resize(8 << 30);
    assert_eq!(server.register("huge", json!({"key": huge.0, "byte_size": 8_u64 << 30})).await.status, StatusCode::OK);
    let reply = server.infer("simple", &request(place("huge", 0, 8_u64 << 30), there())).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(object.content(), [0; 64], "nothing was written");
}

#[tokio::test]
async fn an_object_that_shrinks_or_goes_ends_nothing() {
    let server = open().await;
    let object = Object::new(&[0; 16]);
    assert_eq!(server.register("r", json!({"key": object.0, "byte_size": 16})).await.status, StatusCode::OK);
    object.resize(8);
    let shrunk = server.infer("simple", &request(place("r", 0, 8), place("r", 8, 8))).await;
    assert!(shrunk.error().contains("has 8 bytes, but 16 are needed"), "{}", shrunk.error());
    assert_eq!(object.content().len(), 8, "it is not made larger");
    object.resize(0);
    assert!(server.infer("simple", &request(place("r", 0, 8), place("r", 0, 8))).await.error().contains("has 0 bytes"));
    object.resize(16);
    assert_eq!(server.infer("simple", &request(place("r", 0, 8), place("r", 8, 8))).await.status, StatusCode::OK);
    // The server keeps objects open, as another process would.
    fs::remove_file(object.path()).unwrap();
    assert_eq!(server.infer("simple", &request(place("r", 0, 8), place("r", 8, 8))).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_region_may_be_unregistered_while_a_request_uses_it() {
    let access = AccessConfig { shared_memory: SharedMemory::Local, ..AccessConfig::default() };
    let (server, backend, mut events) = scripted(ServerConfig { access, ..config() }).await;
    let (object, bytes) = (Object::new(&[0; 16]), floats(&[5.0, 6.0]));
    fs::write(object.path(), [&bytes[..], &[0; 8]].concat()).unwrap();
    assert_eq!(server.register("r", json!({"key": object.0, "byte_size": 16})).await.status, StatusCode::OK);
    let body = request(place("r", 0, 8), place("r", 8, 8));
    let under_way = async {
        events.recv().await.unwrap();
        assert_eq!(server.post("/v2/systemsharedmemory/unregister", &[], "").await.status, StatusCode::OK);
        let job = backend.stuck.lock().pop().unwrap();
        crate::scripted::answer(job, crate::scripted::echo).unwrap();
    };
    let (answer, ()) = tokio::join!(server.infer("stuck", &body), under_way);
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(object.content(), bytes.repeat(2));
}

#[tokio::test]
async fn shared_memory_is_disabled_by_default_and_always_for_web_pages() {
    let object = Object::new(&[0; 16]);
    let body = json!({"key": object.0, "byte_size": 16});
    let closed = sharing(SharedMemory::Off, None).await;
    let refused = closed.register("r", body.clone()).await;
    assert_eq!(refused.status, StatusCode::NOT_IMPLEMENTED);
    assert!(refused.error().contains("--shared-memory"));
    let refused = closed.infer("simple", &request(place("r", 0, 8), place("r", 8, 8))).await;
    assert_eq!(refused.status, StatusCode::NOT_IMPLEMENTED);
    assert!(!closed.get("/v2").await.json()["extensions"].to_string().contains("shared_memory"));

    let server = open().await;
    assert_eq!(server.register("r", body.clone()).await.status, StatusCode::OK);
    let page = [("origin", "http://evil.example"), ("content-type", "text/plain")];
    for path in ["/v2/systemsharedmemory/region/s/register", "/v2/systemsharedmemory/unregister"] {
        assert_eq!(server.post(path, &page, body.to_string()).await.status, StatusCode::NOT_IMPLEMENTED);
    }
    let infer = request(place("r", 0, 8), place("r", 8, 8)).to_string();
    for headers in [&page[..], &[("host", "evil.example")]] {
        let reply = server.post("/v2/models/simple/infer", headers, infer.clone()).await;
        assert_eq!(reply.status, StatusCode::NOT_IMPLEMENTED);
    }

    let everywhere = Some(std::net::SocketAddr::from(([0, 0, 0, 0], 0)));
    let access = AccessConfig { shared_memory: SharedMemory::Local, ..AccessConfig::default() };
    let server = scripted(ServerConfig { http: everywhere, access, ..config() }).await.0;
    assert_eq!(server.register("r", body).await.status, StatusCode::NOT_IMPLEMENTED, "not only loopback listens");
}

#[tokio::test]
async fn clients_with_tokens_have_regions_of_their_own_and_all_are_bounded() {
    let token = |name: &str| format!("[[token]]\nname = \"{name}\"\ntoken = \"{name:->20}\"\nscopes = [\"infer\"]\n");
    let file = Scratch::new(&(token("one") + &token("two")));
    let server = sharing(SharedMemory::Local, Some(TokenSource::File(file.0.clone()))).await;
    let object = Object::new(&[0; 16]);
    let (one, two) = (format!("{:->20}", "one"), format!("{:->20}", "two"));
    let body = json!({"key": object.0, "byte_size": 16}).to_string();
    let register = async |token: &str, name: &str| {
        let path = format!("/v2/systemsharedmemory/region/{name}/register");
        server.post(&path, &[("x-api-key", token)], body.clone()).await.status
    };
    let infer = async |token: &str| {
        let body = request(place("r", 0, 8), place("r", 8, 8)).to_string();
        server.post("/v2/models/simple/infer", &[("x-api-key", token)], body).await.status
    };
    assert_eq!(register(&one, "r").await, StatusCode::OK);
    assert_eq!((infer(&one).await, infer(&two).await), (StatusCode::OK, StatusCode::NOT_FOUND));
    server.post("/v2/systemsharedmemory/unregister", &[("x-api-key", &two)], "").await;
    assert_eq!(infer(&one).await, StatusCode::OK);
    let mut held = 1;
    while register(&one, &format!("r{held}")).await == StatusCode::OK {
        held += 1;
        assert!(held <= 512);
    }
    assert_eq!(held, 512);
    assert_eq!(register(&two, "r").await, StatusCode::OK);
}
