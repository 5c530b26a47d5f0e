// The drawing of a zero to the demo model `digits`, from Go; nothing beyond the standard library:
//
//	ripieno serve models/repository &
//	go run clients/go/main.go localhost:8000
//
// Tensors go and come as bytes behind a head of JSON.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
)

const headLength = "Inference-Header-Content-Length"

var image = []float32{
	0, 0, 0.3, 0.9, 0.6, 0.1, 0, 0, 0, 0, 0.8, 0.9, 0.6, 0.9, 0.3, 0, 0, 0.2, 0.9, 0.1, 0, 0.7, 0.5, 0,
	0, 0.3, 0.8, 0, 0, 0.5, 0.5, 0, 0, 0.3, 0.5, 0, 0, 0.6, 0.5, 0, 0, 0.3, 0.7, 0, 0.1, 0.8, 0.4, 0,
	0, 0.1, 0.9, 0.3, 0.6, 0.8, 0, 0, 0, 0, 0.4, 0.8, 0.6, 0, 0, 0,
}

// infer sends one tensor and gives the answer's first.
func infer(address, model, name string, shape []int, data []float32, deadlineMs int) ([]float32, error) {
	head, err := json.Marshal(map[string]any{
		"parameters": map[string]any{"binary_data_output": true, "timeout": 1000 * deadlineMs},
		"inputs": []any{map[string]any{
			"name": name, "datatype": "FP32", "shape": shape,
			"parameters": map[string]any{"binary_data_size": 4 * len(data)},
		}},
	})
	if err != nil {
		return nil, err
	}
	body := bytes.NewBuffer(head)
	if err := binary.Write(body, binary.LittleEndian, data); err != nil {
		return nil, err
	}
	request, err := http.NewRequest(http.MethodPost, "http://"+address+"/v2/models/"+model+"/infer", body)
	if err != nil {
		return nil, err
	}
	request.Header.Set(headLength, strconv.Itoa(len(head)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", response.Status, answer)
	}
	end, err := strconv.Atoi(response.Header.Get(headLength))
	if err != nil {
		return nil, err
	}
	logits := make([]float32, (len(answer)-end)/4)
	return logits, binary.Read(bytes.NewReader(answer[end:]), binary.LittleEndian, logits)
}

func main() {
	address := "localhost:8000"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	logits, err := infer(address, "digits", "image", []int{1, 1, 8, 8}, image, 5000)
	if err != nil {
		log.Fatal(err)
	}
	best := 0
	for class, logit := range logits {
		if logit > logits[best] {
			best = class
		}
	}
	fmt.Printf("the drawing is a %d\n", best)
}
