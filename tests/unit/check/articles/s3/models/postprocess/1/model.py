import json

import numpy as np
import triton_python_backend_utils as pb_utils


def non_max_suppression(prediction, conf_thres=0.25, iou_thres=0.45):
    xc = prediction[:, 4] > conf_thres # candidates
    return prediction[xc]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            detections = pb_utils.get_input_tensor_by_name(request, "DETECTIONS").as_numpy()
            orig_shape = pb_utils.get_input_tensor_by_name(request, "ORIGINAL_SHAPE").as_numpy()[0]
            # 1. 执行 NMS
            pred = non_max_suppression(detections, conf_thres=0.3, iou_thres=0.5)
            orig_h, orig_w = orig_shape[0], orig_shape[1]
            # 4. 构造 JSON 字符串
            results = []
            for det in pred:
                x1, y1, x2, y2, conf, cls = det
                results.append({
                    "confidence": float(conf),
                    "class_name": ["defect", "normal"][int(cls)]
                })
            json_str = json.dumps(results, separators=(',', ':'))
            output_tensor = pb_utils.Tensor("DETECTION_RESULTS", np.array([json_str.encode('utf-8')], dtype=object))
            responses.append(pb_utils.InferenceResponse(output_tensors=[output_tensor]))
        return responses
